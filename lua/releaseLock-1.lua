#!lua flags=allow-oom
--[[ releaseLock-1: gives a lock up.

KEYS[1]  job:lock  STRING

ARGV[1]  token  of the run

Returns  1 released; 0 no lock, or another one
Cost     O(1)
Repeat   safe: answers 0
]]
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
