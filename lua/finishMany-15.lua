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
Cost     O(runs + trimmed + count + promoted), trimmed <= 100 + runs, promoted <= 200
Repeat   safe without fetch: a run that was ended answers 1
]]
--- @include "clock"
--- @include "fetch"
--- @include "finish"
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
    fields = ARGV[i + 7] ~= '' and cmsgpack.unpack(ARGV[i + 7]) or {},
  }
end
local meta = read_meta(q)
redis.call('ZCARD', completed)
redis.call('ZCARD', failed)

local codes, ended, kept = {}, { [completed] = 0, [failed] = 0 }, 0
if #runs > 0 then trim_events(q, meta) end
for i, run in ipairs(runs) do
  local set = run.failed and failed or completed
  local code, h = finish_refusal(q, run, set)
  if code == 0 then
    finish(q, run, h, set, now)
    ended[set] = ended[set] + 1
    if not run.drop then kept = kept + 1 end
  end
  codes[i] = code
end
if kept > 0 then
  local left = 100 + kept - trim_finished(q, completed, opts.completed or {}, now, 100 + kept)
  if left > 0 then trim_finished(q, failed, opts.failed or {}, now, left) end
end
local size = tonumber(opts.maxMetricsSize)
if size then
  for _ = 1, ended[completed] do count_metric(KEYS[13], size, now) end
  for _ = 1, ended[failed] do count_metric(KEYS[14], size, now) end
end

-- A fetch that cannot be done must not hide that the jobs have ended (T2).
local fetched, closed = { {}, 0, 0, {} }, false
if opts.count and opts.count > 0 then
  opts.token = opts.next
  if not fetch_refusal(q, meta, opts) then fetched, closed = fetch(q, meta, now, opts) end
end
if ended[completed] + ended[failed] > 0 and #fetched[1] == 0 and fetched[2] == 0 and fetched[3] == 0
  and not closed then
  emit_drained(q)
end
return { codes, fetched[1], fetched[2], fetched[3], fetched[4], now }
