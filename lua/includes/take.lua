--- @include "checked"
--- @include "events"

-- The next ids, up to `most`, in the order in which they run, and the key they stand in; nothing is moved. Of an id
-- that stands there twice only the first is taken at once: the second would be read as it was before the first.
local function peek(q, most)
  local ids, source = redis.call('LRANGE', q.wait, -most, -1), q.wait
  if #ids > 0 then
    for i = 1, math.floor(#ids / 2) do ids[i], ids[#ids + 1 - i] = ids[#ids + 1 - i], ids[i] end
  else
    ids, source = redis.call('ZRANGE', q.prioritized, 0, most - 1), q.prioritized
  end
  local seen = {}
  for i, id in ipairs(ids) do
    if seen[id] then return { unpack(ids, 1, i - 1) }, source end
    seen[id] = true
  end
  return ids, source
end

-- The hash of a job, and its next `ats`; nil for an id without a usable hash.
local function read_waiting(q, id)
  local fields = read_job('HGETALL', q.prefix .. id)
  if not fields or #fields == 0 then return nil end
  for i = 1, #fields, 2 do
    if fields[i] == 'ats' then return fields, (whole(fields[i + 1]) or 0) + 1 end
  end
  return fields, 1
end

-- Moves peeked ids to `active`: all into it, then all out of their key.
local function move(q, ids, source, moved)
  if #ids == 1 and #moved == 1 and source == q.wait then
    redis.call('LMOVE', q.wait, q.active, 'RIGHT', 'LEFT')
    return
  end
  if #moved > 0 then redis.call('LPUSH', q.active, unpack(moved)) end
  if source == q.wait then
    redis.call('LTRIM', q.wait, 0, -#ids - 1)
  else
    redis.call('ZREM', q.prioritized, unpack(ids))
  end
end

-- Locks a job that was moved, and writes its start.
local function start(q, id, ats, now_text, lock_ms, opts)
  local job = q.prefix .. id
  if opts.token ~= '0' then redis.call('SET', job .. ':lock', opts.token, 'PX', lock_ms) end
  if opts.name then
    redis.call('HSET', job, 'processedOn', now_text, 'ats', ats, 'pb', opts.name)
  else
    redis.call('HSET', job, 'processedOn', now_text, 'ats', ats)
  end
  emit(q, 'active', 'jobId', id, 'prev', 'waiting')
end

-- Moves peeked ids to `active` and locks them. Adds {fields, id, ats} to `jobs`, once a job is locked; an id without a
-- usable hash is taken out of its key and added to `dropped`, never turned into a hash of its own.
local function take(q, ids, source, now, opts, jobs, dropped)
  local found, moved, orphans = {}, {}, {}
  for _, id in ipairs(ids) do
    local fields, ats = read_waiting(q, id)
    if fields then
      moved[#moved + 1] = id
      found[#found + 1] = { fields, id, ats }
    else
      orphans[#orphans + 1] = id
    end
  end
  move(q, ids, source, moved)
  for _, id in ipairs(orphans) do dropped[#dropped + 1] = id end
  local now_text, lock_ms = digits(now), digits(whole(opts.lockDuration) or 0)
  for _, job in ipairs(found) do
    start(q, job[2], digits(job[3]), now_text, lock_ms, opts)
    jobs[#jobs + 1] = job
  end
end
