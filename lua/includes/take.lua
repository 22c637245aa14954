--- @include "checked"
--- @include "events"

-- The next id and the key it stands in; nothing is moved.
local function peek(q)
  local id = redis.call('LINDEX', q.wait, -1)
  if id then return id, q.wait end
  return redis.call('ZRANGE', q.prioritized, 0, 0)[1], q.prioritized
end

local function leave(q, id, source)
  if source == q.wait then redis.call('RPOP', q.wait) else redis.call('ZREM', q.prioritized, id) end
end

-- Moves a peeked id to `active` and locks it. Returns {fields, id, ats}, or nil for an id without a usable hash,
-- which is taken out of its key and named in the reply, never turned into a hash of its own.
local function take(q, id, source, now, opts)
  local job = q.prefix .. id
  local fields = read_job('HGETALL', job)
  if not fields or #fields == 0 then
    leave(q, id, source)
    return nil
  end
  local ats = 1
  for i = 1, #fields, 2 do
    if fields[i] == 'ats' then ats = (whole(fields[i + 1]) or 0) + 1 end
  end
  if source == q.wait then
    redis.call('LMOVE', q.wait, q.active, 'RIGHT', 'LEFT')
  else
    redis.call('LPUSH', q.active, id)
    redis.call('ZREM', q.prioritized, id)
  end
  if opts.token ~= '0' then redis.call('SET', job .. ':lock', opts.token, 'PX', opts.lockDuration) end
  if opts.name then
    redis.call('HSET', job, 'processedOn', now, 'ats', ats, 'pb', opts.name)
  else
    redis.call('HSET', job, 'processedOn', now, 'ats', ats)
  end
  emit(q, 'active', 'jobId', id, 'prev', 'waiting')
  return { fields, id, ats }
end
