--- @include "checked"

-- `n` finished jobs in the per-minute points of their kind (protocol §12). Last and in pcall: it must tear nothing.
local function count_metric(key, size, now, n)
  local after = redis.pcall('HINCRBY', key, 'count', n)
  if type(after) ~= 'number' then return end
  local before = after - n
  local prev = redis.pcall('HMGET', key, 'prevTS', 'prevCount')
  local since = whole(prev[1])
  if not since then
    redis.pcall('HSET', key, 'prevTS', now, 'prevCount', 0)
    return
  end
  local minutes = math.min(math.floor(now / 60000) - math.floor(since / 60000), size)
  if minutes <= 0 then return end
  redis.pcall('LPUSH', key .. ':data', before - (whole(prev[2]) or 0))
  local zeros = minutes - 1
  while zeros > 0 do
    local points = {}
    for i = 1, math.min(zeros, 1000) do points[i] = 0 end
    redis.pcall('LPUSH', key .. ':data', unpack(points))
    zeros = zeros - #points
  end
  redis.pcall('LTRIM', key .. ':data', 0, size - 1)
  redis.pcall('HSET', key, 'prevCount', before, 'prevTS', now)
end
