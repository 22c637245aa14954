#!lua flags=no-writes
--[[ getCountsPerPriority-2: how many jobs wait, by priority.

KEYS[1]  wait         LIST
KEYS[2]  prioritized  ZSET

ARGV[1+] priorities  0 to 2097151; 0: those without a priority, ids that another client left in `paused` included

Returns  a number per priority, in order
Cost     O(priorities)
Repeat   safe
]]
local counts = {}
for i, text in ipairs(ARGV) do
  local priority = tonumber(text)
  if priority == 0 then
    local paused = string.sub(KEYS[1], 1, -#'wait' - 1) .. 'paused'
    counts[i] = redis.call('LLEN', KEYS[1]) + redis.call('LLEN', paused)
  else
    local low = priority * 4294967296
    counts[i] = redis.call('ZCOUNT', KEYS[2], low, low + 4294967295)
  end
end
return counts
