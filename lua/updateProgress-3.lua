#!lua flags=allow-oom
--[[ updateProgress-3: stores a run's progress and tells it.

KEYS[1]  job     HASH
KEYS[2]  events  STREAM
KEYS[3]  meta    HASH

ARGV[1]  id        of the job
ARGV[2]  progress  JSON, at most 16 KiB
ARGV[3]  token     of the run, or 0 for no fence
ARGV[4]  ats       of the run, or empty

Returns  0 done, -1 no such job, -2 no lock, -6 another lock
Cost     O(1)
Repeat   safe; a second event
]]
--- @include "events"
--- @include "lock"
--- @include "meta"

local q = { events = KEYS[2], meta = KEYS[3] }
local job, id, progress = KEYS[1], ARGV[1], ARGV[2]
local meta = read_meta(q)
if (read_job('HLEN', job) or 0) == 0 then return -1 end
local code = lock_refusal(job, ARGV[3], ARGV[4], redis.call('HGET', job, 'ats'))
if code ~= 0 then return code end

redis.call('HSET', job, 'progress', progress)
emit_trimming(q, meta, 'progress', 'jobId', id, 'data', progress)
return 0
