--- @include "limits"
--- @include "meta"
--- @include "promote"
--- @include "take"

-- Reads every key that a fetch writes, so that a wrong type stops it before the first write.
-- Returns the reason why a fetch cannot be done, or nil.
local function fetch_refusal(q, meta, opts)
  for _, reply in ipairs({
    redis.pcall('LLEN', q.wait), redis.pcall('LLEN', q.active), redis.pcall('ZCARD', q.prioritized),
    redis.pcall('ZCARD', q.delayed), redis.pcall('GET', q.limiter) or 0,
  }) do
    if type(reply) == 'table' then return reply.err end
  end
  local limiter = opts.limiter
  if (meta.max or (limiter and limiter.max)) and not ((limiter and limiter.duration) or meta.duration) then
    return 'ERR EMQ a rate limit needs both max and duration; set them together'
  end
  return nil
end

-- Promotes what is due, then takes up to opts.count jobs under one token.
-- Returns {jobs, rate limit ms, due ms of the next delayed job, ids dropped}, and whether the queue is closed.
local function fetch(q, meta, now, opts)
  promote_due(q, meta, now)
  local jobs, dropped = {}, {}
  local wait_ms, room, max = rate_room(q, meta, opts.limiter)
  if wait_ms > 0 then return { jobs, wait_ms, 0, dropped }, false end
  if is_closed(q, meta) then return { jobs, 0, 0, dropped }, true end
  local want = math.min(opts.count or 1, room)
  if meta.concurrency then want = math.min(want, meta.concurrency - redis.call('LLEN', q.active)) end
  local id, source
  while #jobs < want and #dropped < 100 do
    id, source = peek(q)
    if not id then break end
    local job = take(q, id, source, now, opts)
    if job then
      jobs[#jobs + 1] = job
      if max then count_start(q, meta, opts.limiter) end
    else
      dropped[#dropped + 1] = id
    end
  end
  -- Waking one sleeper is enough: its own fetch rings again until one finds nothing (protocol §3.3).
  if #jobs > 0 and (#jobs == want or #dropped >= 100) then ring(q) end
  if id or #jobs == want then return { jobs, 0, 0, dropped }, false end
  if #jobs == 0 then redis.call('DEL', q.pc) end
  local next_due = redis.call('ZRANGE', q.delayed, 0, 0, 'WITHSCORES')
  return { jobs, 0, next_due[2] and math.floor(next_due[2] / 4096) or 0, dropped }, false
end
