--- @include "checked"

-- How long nothing may start because of a rate limit (ms), and how many may start now.
-- A manual limit (RateLimited) holds also where no rate is set: the counter is then at the largest integer.
local function rate_room(q, meta, limiter)
  local max = meta.max or (limiter and whole(limiter.max))
  local cap = max or 9007199254740991
  local used = whole(read_job('GET', q.limiter)) or 0
  if used < cap then return 0, cap - used, max end
  local left = redis.call('PTTL', q.limiter)
  if left > 0 then return left, 0, max end
  if left == 0 then redis.call('DEL', q.limiter) end
  return 0, cap, max
end

-- The length of a rate window, ms; nil where a limit lacks it.
local function rate_window(meta, limiter)
  local window = (limiter and whole(limiter.duration)) or meta.duration
  return window and window > 0 and window or nil
end

-- Counts starts in the current window; the first one opens it. A key that cannot count is replaced.
local function count_starts(q, meta, limiter, n)
  if n == 0 then return end
  local used = redis.pcall('INCRBY', q.limiter, n)
  if used == n or type(used) ~= 'number' then redis.call('SET', q.limiter, n, 'PX', rate_window(meta, limiter)) end
end
