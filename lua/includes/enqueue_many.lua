--- @include "enqueue"

-- What becomes of each id, before anything is written: a list of 1 new, 0 it exists, 2 this very call had added it,
-- also when it comes again here; and how many are new. like: all that the adds share.
local function codes_of(like, ids)
  local keys, codes, seen, new = {}, {}, {}, 0
  for i = 1, #ids do keys[i] = like.prefix .. ids[i] end
  local some_exist = #ids > 0 and redis.call('EXISTS', unpack(keys)) > 0
  for i = 1, #ids do
    local id = ids[i]
    local code = seen[id]
    if not code then
      like.id = id
      code = some_exist and add_refusal(like) or 1
      seen[id] = code == 1 and 2 or code
      if code == 1 then new = new + 1 end
    end
    codes[i] = code
  end
  return codes, new
end

-- Adds those that are new (code 1) of many jobs that share all but ids and payloads. Jobs that may run now and have no
-- priority all stand in `wait` by one command, `side`; others are added one by one. Returns whether they may run now.
local function enqueue_all(q, like, ids, payloads, codes, side, now)
  local later = like.eta ~= nil or like.delay > 0
  local at_once, now_text, placed, count = not later and like.priority == 0, digits(now), {}, 0
  like.rare = rare_fields(like)
  for i = 1, #ids do
    local id = ids[i]
    if at_once and codes[i] == 1 then
      like.id, like.payload = id, payloads[i]
      store_job(like, now_text)
      count = count + 1
      placed[count] = id
    end
  end
  if count > 0 then redis.call(side, q.wait, unpack(placed)) end
  for i = 1, #ids do
    local id = ids[i]
    if codes[i] == 0 then
      emit(q, 'duplicated', 'jobId', id)
    elseif codes[i] == 1 and at_once then
      emit(q, 'added', 'jobId', id, 'name', like.name)
      emit(q, 'waiting', 'jobId', id)
    elseif codes[i] == 1 then
      like.id, like.payload = id, payloads[i]
      enqueue(q, like, now)
    end
  end
  return not later
end
