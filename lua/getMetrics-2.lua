#!lua flags=no-writes
--[[ getMetrics-2: how many jobs have ended in one way, in all and by minute (protocol §12).

KEYS[1]  metrics:target       HASH
KEYS[2]  metrics:target:data  LIST

ARGV[1]  start  0-based; 0 is the newest minute
ARGV[2]  end    inclusive, -1: the oldest

Returns  {{count, prevTS, prevCount}, points, number of points}; a field that is missing is empty
Cost     O(points)
Repeat   safe
]]
local points = redis.call('LRANGE', KEYS[2], ARGV[1], ARGV[2])
return { redis.call('HMGET', KEYS[1], 'count', 'prevTS', 'prevCount'), points, redis.call('LLEN', KEYS[2]) }
