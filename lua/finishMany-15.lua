#!lua flags=allow-oom
--[[ finishMany-15: ends several running jobs, each answered by itself, and takes the next ones. The batch form of
moveToFinished-14 and moveToActive-11: one round trip for all that gathered during the last (design §5).

KEYS[1]   wait               LIST
KEYS[2]   active             LIST
KEYS[3]   prioritized        ZSET
KEYS[4]   events             STREAM
KEYS[5]   stalled            SET
KEYS[6]   limiter            STRING
KEYS[7]   delayed            ZSET
KEYS[8]   paused             LIST    unused; kept in the order of moveToFinished-14
KEYS[9]   meta               HASH
KEYS[10]  pc                 STRING
KEYS[11]  completed          ZSET
KEYS[12]  failed             ZSET
KEYS[13]  metrics:completed  HASH
KEYS[14]  metrics:failed     HASH
KEYS[15]  marker             ZSET

ARGV[1]  prefix   of the queue's keys
ARGV[2]  ts       ms, or empty for the server's clock
ARGV[3]  options  msgpack {completed: {count, age s}, failed: {count, age s}, maxMetricsSize, and to fetch:
                  next (its token), lockDuration ms, count, limiter?, name?}
ARGV[4+] runs     eight each: id, token, ats, field, value, keep (0: not kept), attempts, fields (msgpack or empty);
                  field failedReason means failed, any other completed

Returns  {codes, jobs, rate limit ms, next due ms, ids dropped, now ms}; a code per run as in moveToFinished-14
Cost     O(runs + trimmed + count + promoted), trimmed <= 100 + runs, promoted <= 100
Repeat   safe without fetch: a run that was ended answers 1
]]
--- @include "clock"
--- @include "fetch"
--- @include "finish_many"
--- @include "trim"

local q = {
  wait = KEYS[1], active = KEYS[2], prioritized = KEYS[3], events = KEYS[4], stalled = KEYS[5], limiter = KEYS[6],
  delayed = KEYS[7], meta = KEYS[9], pc = KEYS[10], marker = KEYS[15], prefix = ARGV[1],
}
local completed, failed = KEYS[11], KEYS[12]
local now = read_clock(ARGV[2])
local opts = cmsgpack.unpack(ARGV[3])
if (#ARGV - 3) % 8 ~= 0 then return redis.error_reply('ERR EMQ finishMany: eight arguments a run') end
local runs = {}
for i = 4, #ARGV, 8 do
  runs[#runs + 1] = {
    id = ARGV[i], token = ARGV[i + 1], ats = ARGV[i + 2], field = ARGV[i + 3], value = ARGV[i + 4],
    failed = ARGV[i + 3] == 'failedReason', drop = ARGV[i + 5] == '0', attempts = ARGV[i + 6],
    fields = read_fields(ARGV[i + 7]),
  }
end
local meta = read_meta(q)
local keep_completed, keep_failed = read_keep(opts.completed), read_keep(opts.failed)
read('ZCARD', completed)
read('ZCARD', failed)

local codes, ended = finish_all(q, meta, runs, function(run) return run.failed and failed or completed end, now)
local good, bad, kept = ended[completed] or 0, ended[failed] or 0, 0
for i, run in ipairs(runs) do
  if codes[i] == 0 and not run.drop then kept = kept + 1 end
end
if kept > 0 then
  local left = 100 + kept - trim_finished(q, completed, keep_completed, now, 100 + kept)
  if left > 0 then trim_finished(q, failed, keep_failed, now, left) end
end
local size = whole(opts.maxMetricsSize)
if size and good > 0 then count_metric(KEYS[13], size, now, good) end
if size and bad > 0 then count_metric(KEYS[14], size, now, bad) end

local fetched, closed = { {}, 0, 0, {} }, false
if (whole(opts.count) or 0) > 0 then fetched, closed = fetch_next(q, meta, now, opts) end
if good + bad > 0 and #fetched[1] == 0 and fetched[2] == 0 and fetched[3] == 0 and not closed then emit_drained(q) end
return { codes, fetched[1], fetched[2], fetched[3], fetched[4], now }
