#!lua flags=allow-oom
--[[ retryJob-11: puts a running job back for its next attempt, at once.

KEYS[1]   active       LIST
KEYS[2]   wait         LIST
KEYS[3]   paused       LIST    unused; part of the protocol's signature
KEYS[4]   job          HASH
KEYS[5]   meta         HASH
KEYS[6]   events       STREAM
KEYS[7]   delayed      ZSET
KEYS[8]   prioritized  ZSET
KEYS[9]   pc           STRING
KEYS[10]  marker       ZSET
KEYS[11]  stalled      SET

ARGV[1]  prefix  of the queue's keys
ARGV[2]  ts      ms, or empty for the server's clock
ARGV[3]  side    LPUSH: runs last, RPUSH: runs next
ARGV[4]  id      of the job
ARGV[5]  token   of the run
ARGV[6]  fields  msgpack [field, value ...] to store, or empty
ARGV[7]  ats     of the run, or empty

Returns  0 done, -1 no such job, -2 no lock, -6 another lock, -3 not active
Cost     O(promoted), promoted <= 100
Repeat   safe: the second answers -2, -6 or -3 and writes nothing
]]
--- @include "clock"
--- @include "lock"
--- @include "promote"

local q = {
  active = KEYS[1], wait = KEYS[2], meta = KEYS[5], events = KEYS[6], delayed = KEYS[7], prioritized = KEYS[8],
  pc = KEYS[9], marker = KEYS[10], stalled = KEYS[11], prefix = ARGV[1],
}
local job, id, token, side = KEYS[4], ARGV[4], ARGV[5], ARGV[3]
local now = read_clock(ARGV[2])
local fields = read_fields(ARGV[6])
if side ~= 'LPUSH' and side ~= 'RPUSH' then return redis.error_reply('ERR EMQ side must be LPUSH or RPUSH') end
local meta = read_meta(q)
check_ready(q)
local code, h = leave_refusal(q, job, id, token, ARGV[7])
if code ~= 0 then return code end

promote_due(q, meta, now)
redis.call('HSET', job, 'atm', (whole(h[2]) or 0) + 1, unpack(fields))
push_ready(q, id, whole(h[4]) or 0, side)
redis.call('LREM', q.active, -1, id)
unlock(q, job, id, token)
if not is_closed(q, meta) then ring(q) end
emit_trimming(q, meta, 'waiting', 'jobId', id, 'prev', 'active')
return 0
