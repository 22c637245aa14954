#!lua flags=no-writes
--[[ getJobScheduler-1: the records of some schedules.

KEYS[1]  repeat  ZSET

ARGV[1+] sid  ids of schedules, at most 1000

Returns  per id {record, ms of its current iteration}, or nothing where there is no such schedule
Cost     O(ids)
Repeat   safe
]]
if #ARGV > 1000 then return redis.error_reply('ERR EMQ getJobScheduler: at most 1000 a call') end

local found = {}
for i = 1, #ARGV do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  found[i] = score and { redis.call('HGETALL', KEYS[1] .. ':' .. ARGV[i]), score } or {}
end
return found
