-- All that a transition asks of `meta`, in one read. Garbage counts as "not set".
local function read_meta(q)
  local m = redis.call('HMGET', q.meta, 'paused', 'concurrency', 'max', 'duration', 'opts.maxLenEvents')
  return {
    paused = m[1] and true or false,
    concurrency = tonumber(m[2]),
    max = tonumber(m[3]),
    duration = tonumber(m[4]),
    cap = tonumber(m[5]),
  }
end

-- Whether nothing may start: paused, or at the queue's concurrency.
local function is_closed(q, meta)
  if meta.paused then return true end
  return meta.concurrency ~= nil and redis.call('LLEN', q.active) >= meta.concurrency
end
