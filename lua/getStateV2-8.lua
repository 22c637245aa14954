#!lua flags=no-writes
--[[ getStateV2-8: the state of a job, which is the key its id stands in.

KEYS[1]  completed         ZSET
KEYS[2]  failed            ZSET
KEYS[3]  delayed           ZSET
KEYS[4]  active            LIST
KEYS[5]  wait              LIST
KEYS[6]  paused            LIST
KEYS[7]  waiting-children  ZSET
KEYS[8]  prioritized       ZSET

ARGV[1]  id  of the job

Returns  completed, failed, delayed, prioritized, active, waiting, waiting-children or unknown
Cost     O(wait) when it waits or is unknown: one LPOS over the list (T7's exception)
Repeat   safe
]]
local id = ARGV[1]
if redis.call('ZSCORE', KEYS[1], id) then return 'completed' end
if redis.call('ZSCORE', KEYS[2], id) then return 'failed' end
if redis.call('ZSCORE', KEYS[3], id) then return 'delayed' end
if redis.call('ZSCORE', KEYS[8], id) then return 'prioritized' end
if redis.call('LPOS', KEYS[4], id) then return 'active' end
if redis.call('LPOS', KEYS[5], id) or redis.call('LPOS', KEYS[6], id) then return 'waiting' end
if redis.call('ZSCORE', KEYS[7], id) then return 'waiting-children' end
return 'unknown'
