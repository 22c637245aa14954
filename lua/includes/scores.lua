--- @include "checked"

-- Priority first, then the order of arrival (protocol §3.2). A counter that cannot count is replaced: it orders jobs
-- of one priority, and must not hold them up.
local function priority_score(q, priority)
  local place = redis.pcall('INCR', q.pc)
  if type(place) ~= 'number' then
    place = 1
    redis.call('SET', q.pc, place)
  end
  return priority * 4294967296 + place % 4294967296
end

-- The next free place in the 4096-wide band of one millisecond (protocol §3.1).
local function delayed_score(q, due)
  local low = due * 4096
  local last = read('ZREVRANGEBYSCORE', q.delayed, low + 4095, low, 'WITHSCORES', 'LIMIT', 0, 1)
  if last[2] then return math.min(last[2] + 1, low + 4095) end
  return low
end
