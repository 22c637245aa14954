#!lua flags=allow-oom
--[[ moveToFinished-14: ends a running job as completed or failed, and may take the next ones.

KEYS[1]   wait            LIST
KEYS[2]   active          LIST
KEYS[3]   prioritized     ZSET
KEYS[4]   events          STREAM
KEYS[5]   stalled         SET
KEYS[6]   limiter         STRING
KEYS[7]   delayed         ZSET
KEYS[8]   paused          LIST    unused; part of the protocol's signature
KEYS[9]   meta            HASH
KEYS[10]  pc              STRING
KEYS[11]  target          ZSET    completed or failed
KEYS[12]  job             HASH    unused: made from prefix and id, as in finishMany-15
KEYS[13]  metrics:target  HASH
KEYS[14]  marker          ZSET

ARGV[1]  id       of the job
ARGV[2]  ts       ms, or empty for the server's clock
ARGV[3]  field    returnvalue, result or failedReason
ARGV[4]  value    codec bytes, or plain text for failedReason
ARGV[5]  target   completed or failed
ARGV[6]  fetch    1: take the next jobs
ARGV[7]  prefix   of the queue's keys
ARGV[8]  options  msgpack {token, ats, keepJobs: {count, age s, limit}, attempts, maxMetricsSize, and to fetch:
                  next (its token), lockDuration ms, count, limiter?, name?}
ARGV[9]  fields   msgpack [field, value ...] to store with the result, or empty
ARGV[10] follow   msgpack list of up to 500 jobs to add with the end, or empty: [id, name, payload, options, field,
                  parent key or nil, parent map, whether it waits for children], parents first

Returns  {code, jobs, rate limit ms, next due ms, ids dropped, now ms}; code 0 done, 1 this run had ended it before,
         -1 no such job, -2 no lock, -6 another lock, -3 not active, -4 open children, -9 failed children.
         With a negative code nothing was written; the fetch is done all the same.
Cost     O(trimmed + count + promoted), trimmed <= 100, promoted <= 100
Repeat   safe without fetch: answers 1
]]
--- @include "clock"
--- @include "fetch"
--- @include "finish"
--- @include "trim"

local q = {
  wait = KEYS[1], active = KEYS[2], prioritized = KEYS[3], events = KEYS[4], stalled = KEYS[5], limiter = KEYS[6],
  delayed = KEYS[7], meta = KEYS[9], pc = KEYS[10], marker = KEYS[14], prefix = ARGV[7],
}
local target, metrics = KEYS[11], KEYS[13]
local now = read_clock(ARGV[2])
local opts = cmsgpack.unpack(ARGV[8])
local keep = read_keep(opts.keepJobs)
local run = {
  id = ARGV[1], token = opts.token, ats = opts.ats or '', field = ARGV[3], value = ARGV[4],
  failed = ARGV[5] == 'failed', drop = keep.count == 0, attempts = opts.attempts,
  fields = read_fields(ARGV[9]), follow = ARGV[10] ~= '' and read_follow(q, ARGV[10]) or nil,
}
local meta = read_meta(q)
read('ZCARD', target)

local code, h = finish_refusal(q, run, target)
if code == 0 then
  trim_events(q, meta)
  finish(q, meta, run, h, target, now)
  if not run.drop then trim_finished(q, target, keep, now, 100) end
  local size = whole(opts.maxMetricsSize)
  if size then count_metric(metrics, size, now, 1) end
end

local fetched, closed = { {}, 0, 0, {} }, false
if ARGV[6] == '1' then fetched, closed = fetch_next(q, meta, now, opts) end
if code == 0 and #fetched[1] == 0 and fetched[2] == 0 and fetched[3] == 0 and not closed then emit_drained(q) end
return { code, fetched[1], fetched[2], fetched[3], fetched[4], now }
