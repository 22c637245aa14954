--- @include "finish"

-- What the checks of many runs have in common, each asked once for all: who holds which lock, whether any of the jobs
-- has children, and which ids are in `active`, left to right (nil where there are so many that looking for each by
-- itself is cheaper).
local function look_at_runs(q, runs)
  local look, locks, family = { at = {}, trimmed = false }, {}, {}
  for i, run in ipairs(runs) do
    local job = q.prefix .. run.id
    locks[i], family[2 * i - 1], family[2 * i] = job .. ':lock', job .. ':dependencies', job .. ':unsuccessful'
  end
  if read('LLEN', q.active) <= 4 * #runs then look.active = redis.call('LRANGE', q.active, 0, -1) end
  for i, id in ipairs(look.active or {}) do look.at[id] = i end
  look.held = #runs > 0 and redis.call('MGET', unpack(locks)) or {}
  look.parents = #runs > 0 and redis.call('EXISTS', unpack(family)) > 0
  return look
end

-- Whether a run is ended by itself, after those before it: its job has children, whose own ends may be among them.
local function is_parent(q, look, run)
  local job = q.prefix .. run.id
  return look.parents and redis.call('EXISTS', job .. ':dependencies', job .. ':unsuccessful') > 0
end

-- finish_refusal of the i-th run, whose job has no children, from what was read for all. What is not in order is asked
-- once more, to say why.
local function refusal_from(q, look, i, run, set)
  local h = read_job('HMGET', q.prefix .. run.id, 'ats', 'atm', 'defa', 'priority', 'parentKey', 'parent', 'deid')
  if h and h[1] == run.ats and look.held[i] == run.token then
    if look.at[run.id] or (not look.active and redis.call('LPOS', q.active, run.id, 'RANK', -1)) then return 0, h end
  end
  return finish_refusal(q, run, set)
end

-- Takes the ids of a batch out of `active`. Where all that stand there are known, those that stay are written once
-- more behind them, before the old ones go.
local function leave_active(q, look, batch)
  if not look.active then
    for _, item in ipairs(batch) do redis.call('LREM', q.active, -1, item.run.id) end
    return
  end
  local gone, kept = {}, {}
  for _, item in ipairs(batch) do gone[look.at[item.run.id]] = true end
  for i, id in ipairs(look.active) do
    if not gone[i] then kept[#kept + 1] = id end
  end
  if #kept > 0 then redis.call('RPUSH', q.active, unpack(kept)) end
  redis.call('LTRIM', q.active, #look.active, -1)
end

local function unlock_all(q, batch)
  local ids, locks = {}, {}
  for i, item in ipairs(batch) do
    ids[i] = item.run.id
    if item.run.token ~= '0' then locks[#locks + 1] = q.prefix .. item.run.id .. ':lock' end
  end
  if #locks > 0 then redis.call('DEL', unpack(locks)) end
  redis.pcall('SREM', q.stalled, unpack(ids))
end

-- `finish` for many jobs without children, each {run, h, set}, step by step: the steps that can be done for all of
-- them are one command.
local function finish_batch(q, meta, look, batch, now)
  if #batch == 0 then return end
  if not look.trimmed then trim_events(q, meta) end
  look.trimmed = true
  local now_text, places = digits(now), {}
  for _, item in ipairs(batch) do
    store_end(q, item.run, item.h, now_text)
    if not item.run.drop then
      if not places[item.set] then
        places[item.set] = { 'ZADD', item.set }
        places[#places + 1] = places[item.set]
      end
      local zadd = places[item.set]
      zadd[#zadd + 1], zadd[#zadd + 2] = now_text, item.run.id
    end
  end
  for _, zadd in ipairs(places) do redis.call(unpack(zadd)) end
  leave_active(q, look, batch)
  unlock_all(q, batch)
  for _, item in ipairs(batch) do tell_end(q, meta, item.run, item.h, now) end
end

-- Ends the runs that may end. Returns a code for each, as finish_refusal, and for each set how many went there.
-- sets: of a run, the set that it ends in. The order counts where one is the parent of another, or a job comes twice:
-- such a run is ended alone, after all that came before it.
local function finish_all(q, meta, runs, set_of, now)
  local look, codes, batch, seen, ended = look_at_runs(q, runs), {}, {}, {}, {}
  local function write_batch()
    finish_batch(q, meta, look, batch, now)
    batch, seen = {}, {}
  end
  for i, run in ipairs(runs) do
    local set, code, h = set_of(run)
    local alone = seen[run.id] or is_parent(q, look, run)
    if alone then
      write_batch()
      look.active, look.at = nil, {}
      code, h = finish_refusal(q, run, set)
    else
      code, h = refusal_from(q, look, i, run, set)
    end
    codes[i] = code
    if code == 0 then
      batch[#batch + 1] = { run = run, h = h, set = set }
      seen[run.id] = true
      ended[set] = (ended[set] or 0) + 1
    end
    if alone then write_batch() end
  end
  write_batch()
  return codes, ended
end
