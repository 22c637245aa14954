#!lua flags=allow-oom
--[[ moveStalledJobsToWait-9: gives jobs that lost their owner back, and forgets old finished ones.

Taking and locking happen in one script, so an id in `active` without a lock has lost its owner and is recovered by the
first pass that sees it (T4). After a hole (the last pass is older than three intervals: the server was away, and locks
ran out meanwhile) a pass only marks, and the living have an interval to renew.

KEYS[1]  stalled        SET     filled for other clients, whose pass has two phases
KEYS[2]  wait           LIST
KEYS[3]  active         LIST
KEYS[4]  stalled-check  STRING
KEYS[5]  meta           HASH
KEYS[6]  paused         LIST    unused; part of the protocol's signature
KEYS[7]  marker         ZSET
KEYS[8]  events         STREAM
KEYS[9]  repeat         ZSET    read only: iterations have no exemption (design §10)

ARGV[1]  max       stalled count above which a job is failed by its next consumer
ARGV[2]  prefix    of the queue's keys
ARGV[3]  ts        ms, or empty for the server's clock
ARGV[4]  interval  ms between two passes
ARGV[5]  cursor    0 starts a pass; else the cursor of the last reply
ARGV[6]  keep      msgpack {completed: {count, age s}, failed: {count, age s}}

Returns  {ids recovered, cursor, ids dropped, ms, iterations whose schedules stand still}; cursor 0: the pass is
         done, -1: another pass holds it back for so many ms
Cost     O(1000 active ids + 200 trimmed + 500 due schedules) a call
Repeat   safe: a second pass finds nothing
]]
--- @include "clock"
--- @include "events"
--- @include "late"
--- @include "marker"
--- @include "meta"
--- @include "trim"

local q = {
  stalled = KEYS[1], wait = KEYS[2], active = KEYS[3], meta = KEYS[5], marker = KEYS[7], events = KEYS[8],
  prefix = ARGV[2],
}
local check = KEYS[4]
local max, interval, cursor = whole(ARGV[1]), whole(ARGV[4]), whole(ARGV[5])
if not (max and interval and cursor) or interval == 0 then refuse('ERR EMQ max, interval and cursor are numbers') end
local keep = cmsgpack.unpack(ARGV[6])
local keep_completed, keep_failed = read_keep(keep.completed), read_keep(keep.failed)
local now = read_clock(ARGV[3])
local meta = read_meta(q)
local completed, failed = q.prefix .. 'completed', q.prefix .. 'failed'
read('LLEN', q.wait)
read('ZCARD', completed)
read('ZCARD', failed)

-- From the right end, where the oldest stand: what is fetched meanwhile comes in at the left. The cursor is one more
-- than the ids that this pass left there, since 0 means done.
local late = {}
local left_there = math.max(0, cursor - 1)
local ids = read('LRANGE', q.active, -(left_there + 1000), -(left_there + 1))
if cursor == 0 then
  local left = redis.call('PTTL', check)
  if left >= 0 and left <= interval then return { {}, -1, {}, left, {} } end
  local last = whole(redis.call('HGET', q.meta, 'x:pass'))
  local hole = last and now - last > 3 * interval
  local from, place = whole(redis.call('HGET', q.meta, 'x:late')) or 0, nil
  late, place = late_schedules(KEYS[9], now, from)
  redis.call('SET', check, now, 'PX', interval)
  redis.call('HSET', q.meta, 'x:pass', now, 'x:mark', hole and 1 or 0)
  if place ~= from then redis.call('HSET', q.meta, 'x:late', place) end
  trim_events(q, meta)
  redis.call('DEL', q.stalled)
  trim_finished(q, completed, keep_completed, now, 100)
  trim_finished(q, failed, keep_failed, now, 100)
end
local mark_only = redis.call('HGET', q.meta, 'x:mark') == '1'

local recovered, dropped, owned = {}, {}, {}
for i = #ids, 1, -1 do
  local id = ids[i]
  local job = q.prefix .. id
  local h = read_job('HMGET', job, 'priority', 'stc')
  if not h or (not h[1] and redis.call('EXISTS', job) == 0) then
    redis.call('LREM', q.active, -1, id)
    dropped[#dropped + 1] = id
  elseif mark_only or redis.call('EXISTS', job .. ':lock') == 1 then
    owned[#owned + 1] = id
  elseif redis.call('ZSCORE', completed, id) or redis.call('ZSCORE', failed, id) then
    redis.call('LREM', q.active, -1, id)
  else
    local stalls = (whole(h[2]) or 0) + 1
    if stalls > max then
      redis.call('HSET', job, 'stc', stalls, 'defa', 'job stalled more than allowable limit')
    else
      redis.call('HSET', job, 'stc', stalls)
    end
    redis.call('RPUSH', q.wait, id)
    redis.call('LREM', q.active, -1, id)
    emit(q, 'waiting', 'jobId', id, 'prev', 'active')
    emit(q, 'stalled', 'jobId', id)
    recovered[#recovered + 1] = id
  end
end
if #owned > 0 then redis.pcall('SADD', q.stalled, unpack(owned)) end

-- The pass sets the marker again whenever there is work: a hint that got lost must not make others sleep (T8).
local ready = redis.call('LLEN', q.wait) > 0 or (read_job('ZCARD', q.prefix .. 'prioritized') or 0) > 0
if ready and not is_closed(q, meta) then ring(q) end
return { recovered, #ids == 1000 and left_there + #owned + 1 or 0, dropped, 0, late }
