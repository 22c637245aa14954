-- The marker is a hint (T8): pcall, since a job is safe without it.
local function ring(q)
  redis.pcall('ZADD', q.marker, 0, '0')
end

-- Tells sleepers when the earliest delayed job is due.
local function ring_delay(q)
  local first = redis.call('ZRANGE', q.delayed, 0, 0, 'WITHSCORES')
  if first[2] then redis.pcall('ZADD', q.marker, first[2] / 4096, '1') end
end
