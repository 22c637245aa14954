#!lua flags=allow-oom
--[[ loseJob-6: gives a run whose process has died back at once, with the reason: what a stalled pass would do once the
lock has run out.

KEYS[1]  active   LIST
KEYS[2]  wait     LIST
KEYS[3]  stalled  SET
KEYS[4]  meta     HASH
KEYS[5]  marker   ZSET
KEYS[6]  events   STREAM

ARGV[1]  id      of the job
ARGV[2]  token   of the run
ARGV[3]  job     full key of the job hash
ARGV[4]  ats     of the run
ARGV[5]  max     stalled count above which a job is failed by its next consumer
ARGV[6]  reason  how the process died; why the job fails, once it has done so too often

Returns  0 given back; -1 no such job, -2 no lock, -6 another lock, -3 not active
Cost     O(active)
Repeat   safe: the second answers -2, -6 or -3 and writes nothing
]]
--- @include "events"
--- @include "lock"
--- @include "marker"
--- @include "meta"

local q = {
  active = KEYS[1], wait = KEYS[2], stalled = KEYS[3], meta = KEYS[4], marker = KEYS[5], events = KEYS[6],
}
local id, token, job = ARGV[1], ARGV[2], ARGV[3]
local max = whole(ARGV[5])
if not max then refuse('ERR EMQ max is a number') end
local meta = read_meta(q)
read('LLEN', q.wait)
local code = leave_refusal(q, job, id, token, ARGV[4])
if code ~= 0 then return code end

local stalls = (whole(redis.call('HGET', job, 'stc')) or 0) + 1
if stalls > max then
  redis.call('HSET', job, 'stc', stalls, 'defa', 'job stalled more than allowable limit: ' .. ARGV[6])
else
  redis.call('HSET', job, 'stc', stalls)
end
redis.call('RPUSH', q.wait, id)
redis.call('LREM', q.active, -1, id)
unlock(q, job, id, token)
if not is_closed(q, meta) then ring(q) end
emit(q, 'waiting', 'jobId', id, 'prev', 'active')
emit(q, 'stalled', 'jobId', id)
return 0
