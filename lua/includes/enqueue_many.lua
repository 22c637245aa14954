--- @include "enqueue"

-- Whether any of these jobs exists. adds: at least one, at most 250 (T7).
local function exist(adds)
  local keys = {}
  for i, add in ipairs(adds) do keys[i] = add.prefix .. add.id end
  return redis.call('EXISTS', unpack(keys)) > 0
end

-- `enqueue` for jobs that may all run now and have no priority, step by step: all stand in `wait` by one command.
local function enqueue_ready(q, adds, side, now_text)
  local ids = {}
  for i, add in ipairs(adds) do
    store_job(add, now_text)
    ids[i] = add.id
  end
  redis.call(side, q.wait, unpack(ids))
  for _, add in ipairs(adds) do
    emit(q, 'added', 'jobId', add.id, 'name', add.name)
    emit(q, 'waiting', 'jobId', add.id)
  end
end

-- Adds many jobs that share their options. Returns a code for each as add_refusal (1: added), how many of them
-- counted, and whether any may run now, and whether any must not yet.
local function enqueue_all(q, adds, lifo, now)
  local codes, batch, seen, taken, ready, later = {}, {}, {}, 0, false, false
  local some_exist, now_text = exist(adds), digits(now)
  local function write_batch()
    if #batch == 0 then return end
    enqueue_ready(q, batch, lifo and 'RPUSH' or 'LPUSH', now_text)
    batch, ready = {}, true
  end
  for i, add in ipairs(adds) do
    -- One that came before in this call is to be found in its key.
    if seen[add.id] then write_batch() end
    local code = (some_exist or seen[add.id]) and add_refusal(add) or nil
    local is_ready = not (add.eta or add.delay > 0 or add.priority > 0)
    if code or not is_ready then write_batch() end
    if code == 0 then emit(q, 'duplicated', 'jobId', add.id) end
    if code ~= 2 then taken = taken + 1 end
    if not code and is_ready then
      batch[#batch + 1] = add
    elseif not code then
      if enqueue(q, add, now) then ready = true else later = true end
    end
    codes[i], seen[add.id] = code or 1, true
  end
  write_batch()
  return codes, taken, ready, later
end
