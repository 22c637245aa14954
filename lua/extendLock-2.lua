#!lua flags=allow-oom
--[[ extendLock-2: renews one job's lock. By PEXPIRE, which works at full memory too (T3).

KEYS[1]  job:lock  STRING
KEYS[2]  stalled   SET

ARGV[1]  token     of the run
ARGV[2]  duration  ms
ARGV[3]  id        of the job

Returns  1 renewed; 0 no lock, or another one
Cost     O(1)
Repeat   safe
]]
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.pcall('SREM', KEYS[2], ARGV[3])
return 1
