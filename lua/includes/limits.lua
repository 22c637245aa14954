-- How long nothing may start because of a rate limit (ms), and how many may start now.
-- A manual limit (RateLimited) holds also where no rate is set: the counter is then at the largest integer.
local function rate_room(q, meta, limiter)
  local max = meta.max or (limiter and limiter.max)
  local cap = max or 9007199254740991
  local used = tonumber(redis.call('GET', q.limiter)) or 0
  if used < cap then return 0, cap - used, max end
  local left = redis.call('PTTL', q.limiter)
  if left > 0 then return left, 0, max end
  if left == 0 then redis.call('DEL', q.limiter) end
  return 0, cap, max
end

-- Counts one start in the current window; the first one opens it.
local function count_start(q, meta, limiter)
  if redis.call('EXISTS', q.limiter) == 1 then
    redis.call('INCR', q.limiter)
  else
    local window = (limiter and limiter.duration) or meta.duration
    redis.call('SET', q.limiter, 1, 'PX', math.floor(math.abs(window)))
  end
end
