-- One finished job in the per-minute points of its kind (protocol §12). Last and in pcall: a statistic tears nothing.
local function count_metric(key, size, now)
  local before = redis.pcall('HINCRBY', key, 'count', 1)
  if type(before) ~= 'number' then return end
  before = before - 1
  local prev = redis.pcall('HMGET', key, 'prevTS', 'prevCount')
  if not prev[1] then
    redis.pcall('HSET', key, 'prevTS', now, 'prevCount', 0)
    return
  end
  local minutes = math.min(math.floor(now / 60000) - math.floor(prev[1] / 60000), size)
  if minutes <= 0 then return end
  local points = { before - (tonumber(prev[2]) or 0) }
  for i = 2, math.min(minutes, 1000) do points[i] = 0 end
  redis.pcall('LPUSH', key .. ':data', unpack(points))
  redis.pcall('LTRIM', key .. ':data', 0, size - 1)
  redis.pcall('HSET', key, 'prevCount', before, 'prevTS', now)
end
