#!lua flags=allow-oom
--[[ changeDelay-4: gives a delayed job another due time.

KEYS[1]  delayed  ZSET
KEYS[2]  meta     HASH
KEYS[3]  marker   ZSET
KEYS[4]  events   STREAM

ARGV[1]  delay  ms from now
ARGV[2]  ts     ms, or empty for the server's clock
ARGV[3]  id     of the job
ARGV[4]  job    full key of the job hash

Returns  0 done, -1 no such job, -3 not delayed
Cost     O(log delayed)
Repeat   safe; the delay counts from the second
]]
--- @include "clock"
--- @include "events"
--- @include "marker"
--- @include "meta"
--- @include "scores"

local q = { delayed = KEYS[1], meta = KEYS[2], marker = KEYS[3], events = KEYS[4] }
local delay, id, job = whole(ARGV[1]), ARGV[3], ARGV[4]
if not delay then refuse('ERR EMQ delay: ms') end
local due = read_clock(ARGV[2]) + delay
local meta = read_meta(q)
if (read_job('HLEN', job) or 0) == 0 then return -1 end
if not read('ZSCORE', q.delayed, id) then return -3 end
local score = delayed_score(q, due)

redis.call('HSET', job, 'delay', delay)
redis.call('ZADD', q.delayed, score, id)
emit_trimming(q, meta, 'delayed', 'jobId', id, 'delay', due)
ring_delay(q)
return 0
