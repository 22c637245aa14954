#!lua flags=allow-oom
--[[ updateData-1: replaces a job's arguments.

KEYS[1]  job  HASH

ARGV[1]  payload  codec bytes, at most the task's max_payload
ARGV[2]  field    args or data: where the job's payload is
ARGV[3]  token    of the run; 0 from outside, which is refused while the job runs
ARGV[4]  ats      of the run, or empty

Returns  0 done, -1 no such job, -2 no lock, -6 another lock
Cost     O(1)
Repeat   safe
]]
--- @include "lock"

local job, field, token = KEYS[1], ARGV[2], ARGV[3]
if field ~= 'args' and field ~= 'data' then refuse('ERR EMQ field: args or data') end
if (read_job('HLEN', job) or 0) == 0 then return -1 end
if token == '0' and redis.call('EXISTS', job .. ':lock') == 1 then return -6 end
local code = lock_refusal(job, token, ARGV[4], redis.call('HGET', job, 'ats'))
if code ~= 0 then return code end

redis.call('HSET', job, field, ARGV[1])
return 0
