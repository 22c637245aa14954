#!lua flags=allow-oom
--[[ addLog-2: appends a line to a job's log.

KEYS[1]  job       HASH
KEYS[2]  job:logs  LIST

ARGV[1]  id     unused; part of the protocol's signature
ARGV[2]  line   text, at most 16 KiB
ARGV[3]  keep   how many of the newest lines stay, or empty for all
ARGV[4]  token  of the run, or 0 for no fence
ARGV[5]  ats    of the run, or empty

Returns  the number of lines kept; -1 no such job, -2 no lock, -6 another lock
Cost     O(1)
Repeat   not safe: a second line
]]
--- @include "lock"

local job, logs, keep = KEYS[1], KEYS[2], ARGV[3] ~= '' and whole(ARGV[3])
if keep == nil or keep == 0 then refuse('ERR EMQ keep: a number above 0, or empty') end
if (read_job('HLEN', job) or 0) == 0 then return -1 end
local code = lock_refusal(job, ARGV[4], ARGV[5], redis.call('HGET', job, 'ats'))
if code ~= 0 then return code end

local count = redis.call('RPUSH', logs, ARGV[2])
if not keep or count <= keep then return count end
redis.call('LTRIM', logs, -keep, -1)
return keep
