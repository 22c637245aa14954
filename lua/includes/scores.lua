-- Priority first, then the order of arrival (protocol §3.2).
local function priority_score(q, priority)
  return priority * 4294967296 + redis.call('INCR', q.pc) % 4294967296
end

-- The next free place in the 4096-wide band of one millisecond (protocol §3.1).
local function delayed_score(q, due)
  local low = due * 4096
  local last = redis.call('ZREVRANGEBYSCORE', q.delayed, low + 4095, low, 'WITHSCORES', 'LIMIT', 0, 1)
  if last[2] then return math.min(last[2] + 1, low + 4095) end
  return low
end
