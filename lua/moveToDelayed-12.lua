#!lua flags=allow-oom
--[[ moveToDelayed-12: puts a running job off: a retry with a wait, or a task that asked for a later run.

KEYS[1]   marker       ZSET
KEYS[2]   active       LIST
KEYS[3]   prioritized  ZSET
KEYS[4]   delayed      ZSET
KEYS[5]   job          HASH
KEYS[6]   events       STREAM
KEYS[7]   meta         HASH
KEYS[8]   stalled      SET
KEYS[9]   wait         LIST
KEYS[10]  limiter      STRING
KEYS[11]  paused       LIST    unused; part of the protocol's signature
KEYS[12]  pc           STRING

ARGV[1]   prefix   of the queue's keys
ARGV[2]   ts       ms, or empty for the server's clock
ARGV[3]   id       of the job
ARGV[4]   token    of the run
ARGV[5]   delay    ms from now
ARGV[6]   skip     1: no attempt is counted
ARGV[7]   fields   msgpack [field, value ...] to store, or empty
ARGV[8]   fetch    1: take the next jobs
ARGV[9]   options  msgpack {ats, eta ms (an absolute due time, instead of delay), and to fetch: next (its token),
                   lockDuration ms, count, limiter?, name?}

Returns  {code, jobs, rate limit ms, next due ms, ids dropped, now ms}; code 0 done, -1 no such job, -2 no lock,
         -6 another lock, -3 not active
Cost     O(log delayed + count + promoted), promoted <= 100
Repeat   safe without fetch: the second answers -2, -6 or -3 and writes nothing
]]
--- @include "clock"
--- @include "fetch"
--- @include "lock"

local q = {
  marker = KEYS[1], active = KEYS[2], prioritized = KEYS[3], delayed = KEYS[4], events = KEYS[6], meta = KEYS[7],
  stalled = KEYS[8], wait = KEYS[9], limiter = KEYS[10], pc = KEYS[12], prefix = ARGV[1],
}
local job, id, token = KEYS[5], ARGV[3], ARGV[4]
local now = read_clock(ARGV[2])
local opts = cmsgpack.unpack(ARGV[9])
local fields = read_fields(ARGV[7])
local delay = whole(opts.eta or ARGV[5])
if not delay then refuse('ERR EMQ delay and eta: ms') end
local due = opts.eta and delay or now + delay
local meta = read_meta(q)
local code, h = leave_refusal(q, job, id, token, opts.ats or '')
-- A job that is to be cancelled waits for nothing: its next consumer ends it.
if h[8] then due = now end
local score = delayed_score(q, due)

if code == 0 then
  local atm = whole(h[2]) or 0
  if ARGV[6] ~= '1' then atm = atm + 1 end
  redis.call('HSET', job, 'delay', math.max(0, due - now), 'atm', atm, unpack(fields))
  redis.call('ZADD', q.delayed, score, id)
  redis.call('LREM', q.active, -1, id)
  unlock(q, job, id, token)
  emit_trimming(q, meta, 'delayed', 'jobId', id, 'delay', due)
  ring_delay(q)
end

local fetched = { {}, 0, 0, {} }
if ARGV[8] == '1' then fetched = fetch_next(q, meta, now, opts) end
return { code, fetched[1], fetched[2], fetched[3], fetched[4], now }
