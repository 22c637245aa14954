#!lua flags=allow-oom
--[[ updateJobScheduler-12: produces the next iteration of a schedule, when the current one has been taken to be run.

KEYS[1]   repeat       ZSET
KEYS[2]   delayed      ZSET
KEYS[3]   wait         LIST
KEYS[4]   paused       LIST
KEYS[5]   meta         HASH
KEYS[6]   prioritized  ZSET
KEYS[7]   marker       ZSET
KEYS[8]   id           STRING
KEYS[9]   events       STREAM
KEYS[10]  pc           STRING
KEYS[11]  job          HASH    unused: the iteration that was taken is known by its id
KEYS[12]  active       LIST

ARGV[1]  next      ms of the next slot of a pattern; unused by an interval, whose slot is computed here
ARGV[2]  sid       id of the schedule
ARGV[3]  ts        ms, or empty for the server's clock
ARGV[4]  prefix    of the queue's keys
ARGV[5]  producer  id of the iteration that was taken

Returns  the next iteration's id; empty: the schedule was removed, has produced it already, or has reached its end
Cost     O(log delayed); O(wait) where the next iteration exists already
Repeat   safe: the current iteration is then another one, and nothing is produced
]]
--- @include "clock"
--- @include "iteration"

local q = {
  delayed = KEYS[2], wait = KEYS[3], paused = KEYS[4], meta = KEYS[5], prioritized = KEYS[6], marker = KEYS[7],
  id = KEYS[8], events = KEYS[9], pc = KEYS[10], active = KEYS[12], prefix = ARGV[4],
}
local schedules, sid = KEYS[1], ARGV[2]
local now = read_clock(ARGV[3])
local meta = read_meta(q)
local prev = whole(read('ZSCORE', schedules, sid))
-- A retry or a new run of an old iteration produces nothing: each slot comes once.
if not prev or ARGV[5] ~= iteration_id(sid, prev) then return '' end

local key = schedules .. ':' .. sid
local record = read_record(key)
local slot = record.every and next_slot(prev, record.every, now, record.offset) or whole(ARGV[1])
if not slot or slot <= prev then refuse('ERR EMQ schedule: the ms of the next slot, after that of the current one') end
if (record.limit and record.ic >= record.limit) or (record.endDate and slot > record.endDate) then return '' end
check_ready(q)
read('ZCARD', q.delayed)

local id = iteration_id(sid, slot)
local h = read_job('HMGET', q.prefix .. id, 'rjk', 'finishedOn')
local ours = h and h[1] == sid and not h[2]
local place = place_of(q, id)
-- One that stands nowhere is left of a call that broke off, and is put in its place.
if redis.call('EXISTS', q.prefix .. id) == 1 and (place or not ours) then
  -- One that has not ended goes on for the schedule: else this were the last slot.
  if ours then redis.call('ZADD', schedules, slot, sid) end
  emit_trimming(q, meta, 'duplicated', 'jobId', id)
  return ''
end
local iteration = iteration_of(q, sid, record, slot, record.ic + 1, now)

add_iteration(q, meta, iteration, now)
redis.call('ZADD', schedules, slot, sid)
redis.call('HSET', key, 'ic', record.ic + 1)
trim_events(q, meta)
return id
