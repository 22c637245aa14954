#!lua flags=allow-oom
--[[ removeJobScheduler-3: removes a schedule and its delayed iteration. One that waits or runs already still runs.

KEYS[1]  repeat   ZSET
KEYS[2]  delayed  ZSET
KEYS[3]  events   STREAM

ARGV[1]  sid     id of the schedule
ARGV[2]  prefix  of the queue's keys

Returns  0 removed, 1 no such schedule
Cost     O(log delayed)
Repeat   safe: answers 1
]]
--- @include "checked"
--- @include "drop"
--- @include "events"

local schedules, delayed, sid, prefix = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local q = { events = KEYS[3] }
if schedules ~= prefix .. 'repeat' then refuse('ERR EMQ the prefix is not that of the keys') end
local score = read('ZSCORE', schedules, sid)
if not score then return 1 end
local key = schedules .. ':' .. sid
local id = 'repeat:' .. sid .. ':' .. score
read('HLEN', key)
local pending = read('ZSCORE', delayed, id)

redis.call('ZREM', schedules, sid)
redis.call('DEL', key)
if pending then
  -- Its keys first: a break in between leaves an id without a hash, which the next fetch drops.
  drop_job(prefix .. id)
  redis.call('ZREM', delayed, id)
  emit(q, 'removed', 'jobId', id, 'prev', 'delayed')
end
return 0
