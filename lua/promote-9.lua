#!lua flags=allow-oom
--[[ promote-9: lets a delayed job run now.

KEYS[1]  delayed      ZSET
KEYS[2]  wait         LIST
KEYS[3]  paused       LIST    unused; part of the protocol's signature
KEYS[4]  meta         HASH
KEYS[5]  prioritized  ZSET
KEYS[6]  active       LIST
KEYS[7]  pc           STRING
KEYS[8]  events       STREAM
KEYS[9]  marker       ZSET

ARGV[1]  prefix  of the queue's keys
ARGV[2]  id      of the job

Returns  0 done, -1 no such job, -3 not delayed
Cost     O(log delayed)
Repeat   safe: answers -3
]]
--- @include "events"
--- @include "marker"
--- @include "meta"
--- @include "ready"

local q = {
  delayed = KEYS[1], wait = KEYS[2], meta = KEYS[4], prioritized = KEYS[5], active = KEYS[6], pc = KEYS[7],
  events = KEYS[8], marker = KEYS[9], prefix = ARGV[1],
}
local id, job = ARGV[2], ARGV[1] .. ARGV[2]
local meta = read_meta(q)
check_ready(q)
if (read_job('HLEN', job) or 0) == 0 then return -1 end
local priority = whole(redis.call('HGET', job, 'priority')) or 0
if not read('ZSCORE', q.delayed, id) then return -3 end

push_ready(q, id, priority, 'LPUSH')
redis.call('ZREM', q.delayed, id)
redis.call('HSET', job, 'delay', 0)
if not is_closed(q, meta) then ring(q) end
emit(q, 'waiting', 'jobId', id, 'prev', 'delayed')
return 0
