#!lua flags=allow-oom
--[[ reprocessJob-8: runs a finished job again. A parent that it failed, or that still waits, waits for it once more.

KEYS[1]  job     HASH
KEYS[2]  events  STREAM
KEYS[3]  target  ZSET    completed or failed
KEYS[4]  wait    LIST
KEYS[5]  meta    HASH
KEYS[6]  paused  LIST    unused; part of the protocol's signature
KEYS[7]  active  LIST
KEYS[8]  marker  ZSET

ARGV[1]  id      of the job
ARGV[2]  side    LPUSH: runs last, RPUSH: runs next
ARGV[3]  field   failedReason, returnvalue or result: what the end left
ARGV[4]  target  completed or failed
ARGV[5]  reset   1: attempts, stalls and a deferred failure start anew; `ats`, the fence, never falls (T6)
ARGV[6]  ts      ms, or empty for the server's clock

Returns  1 done, -1 no such job, -3 not in that state
Cost     O(log finished); of a parent O(children that failed it, or were cancelled with it), at most 1000
Repeat   safe: answers -3
]]
--- @include "clock"
--- @include "events"
--- @include "marker"
--- @include "meta"
--- @include "rerun"

local q = { events = KEYS[2], wait = KEYS[4], meta = KEYS[5], active = KEYS[7], marker = KEYS[8] }
local job, target, id, side = KEYS[1], KEYS[3], ARGV[1], ARGV[2]
if side ~= 'LPUSH' and side ~= 'RPUSH' then return redis.error_reply('ERR EMQ side must be LPUSH or RPUSH') end
local now = read_clock(ARGV[6])
local meta = read_meta(q)
read('LLEN', q.wait)
if (read_job('HLEN', job) or 0) == 0 then return -1 end
if not read('ZSCORE', target, id) then return -3 end
local h = redis.call('HMGET', job, 'parentKey', 'x:cancel')
local parent, ended, lost = h[1], {}, lost_children(job)
if h[2] then
  if read('SCARD', job .. ':dependencies') > 1000 then refuse('ERR EMQ more than 1000 children are open; retry them') end
  ended = cancelled_children(job)
end

redis.call(side, q.wait, id)
redis.call('ZREM', target, id)
redis.call('HDEL', job, 'finishedOn', 'processedOn', 'err', 'x:cancel', ARGV[3])
-- A value is in the field of the codec that the queue had then; it is none of the new run.
if ARGV[4] == 'completed' then redis.call('HDEL', job, 'returnvalue', 'result') end
if ARGV[5] == '1' then redis.call('HDEL', job, 'atm', 'stc', 'defa') end
if #lost > 0 then redis.pcall('ZREM', job .. ':unsuccessful', unpack(lost)) end
if parent then settle_edge(reopen_edge, parent, job) end
settle_cancelled(job, ended, now)
if not is_closed(q, meta) then ring(q) end
emit_trimming(q, meta, 'waiting', 'jobId', id, 'prev', ARGV[4])
return 1
