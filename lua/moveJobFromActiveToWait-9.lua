#!lua flags=allow-oom
--[[ moveJobFromActiveToWait-9: hands a running job back to the head, with no attempt counted: the consumer stops, or a
rate limit was hit.

KEYS[1]  active       LIST
KEYS[2]  wait         LIST
KEYS[3]  stalled      SET
KEYS[4]  paused       LIST    unused; part of the protocol's signature
KEYS[5]  meta         HASH
KEYS[6]  limiter      STRING
KEYS[7]  prioritized  ZSET
KEYS[8]  marker       ZSET
KEYS[9]  events       STREAM

ARGV[1]  id     of the job
ARGV[2]  token  of the run
ARGV[3]  job    full key of the job hash
ARGV[4]  ats    of the run, or empty
ARGV[5]  limit  ms for which the queue starts nothing, or empty: a manual rate limit, set with the move

Returns  ms that the queue's rate limit still holds, or 0; -1 no such job, -2 no lock, -6 another lock, -3 not active
Cost     O(active)
Repeat   safe: the second answers -2, -6 or -3 and writes nothing
]]
--- @include "events"
--- @include "lock"
--- @include "marker"
--- @include "meta"

local q = {
  active = KEYS[1], wait = KEYS[2], stalled = KEYS[3], meta = KEYS[5], limiter = KEYS[6], prioritized = KEYS[7],
  marker = KEYS[8], events = KEYS[9],
}
local id, token, job = ARGV[1], ARGV[2], ARGV[3]
local meta = read_meta(q)
local limit_ms = ARGV[5] ~= '' and whole(ARGV[5]) or 0
if ARGV[5] ~= '' and not whole(ARGV[5]) then refuse('ERR EMQ limit: ms, or empty') end
read('LLEN', q.wait)
read('ZCARD', q.prioritized)
local code, h = leave_refusal(q, job, id, token, ARGV[4])
if code ~= 0 then return code end

local priority = whole(h[4]) or 0
if priority > 0 then
  redis.call('ZADD', q.prioritized, priority * 4294967296, id)
else
  redis.call('RPUSH', q.wait, id)
end
redis.call('LREM', q.active, -1, id)
unlock(q, job, id, token)
-- The largest integer: no window counts up to it, so the limit ends with its expiry only.
if limit_ms > 0 then redis.call('SET', q.limiter, '9007199254740991', 'PX', limit_ms) end
if not is_closed(q, meta) then ring(q) end
emit_trimming(q, meta, 'waiting', 'jobId', id, 'prev', 'active')
return math.max(0, redis.call('PTTL', q.limiter))
