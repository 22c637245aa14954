#!lua flags=allow-oom
--[[ moveJobsToWait-8: lets many jobs run now: those that ended in one way, with their attempts counted from the start,
or those that are delayed.

KEYS[1]  prefix  of the queue's keys
KEYS[2]  events  STREAM
KEYS[3]  target  ZSET    failed, completed or delayed
KEYS[4]  wait    LIST
KEYS[5]  paused  LIST    unused; part of the protocol's signature
KEYS[6]  meta    HASH
KEYS[7]  active  LIST
KEYS[8]  marker  ZSET

ARGV[1]  count  how many at the most, 1 to 250
ARGV[2]  state  failed, completed or delayed
ARGV[3]  ts     ms, or empty for the server's clock

Returns  {ids taken, ids left}; call again until none is left
Cost     O(count + their children that failed them, or were cancelled with them), at most 1000, or those of one job
Repeat   safe: takes the next ones
]]
--- @include "clock"
--- @include "events"
--- @include "marker"
--- @include "meta"
--- @include "ready"
--- @include "rerun"

local source, count, state = KEYS[3], whole(ARGV[1]), ARGV[2]
local q = {
  prefix = KEYS[1], events = KEYS[2], wait = KEYS[4], meta = KEYS[6], active = KEYS[7], marker = KEYS[8],
  prioritized = KEYS[1] .. 'prioritized', pc = KEYS[1] .. 'pc',
}
if not count or count < 1 or count > 250 then refuse('ERR EMQ count: 1 to 250') end
if state ~= 'failed' and state ~= 'completed' and state ~= 'delayed' or source ~= q.prefix .. state then
  refuse('ERR EMQ state: failed, completed or delayed, and its key')
end
local now = read_clock(ARGV[3])
local meta = read_meta(q)
check_ready(q)

-- How many ids a new run of a job touches beside its own.
local function children_of(job)
  local cancelled = read_job('HEXISTS', job, 'x:cancel') == 1 and read_job('SCARD', job .. ':dependencies') or 0
  return (read_job('ZCARD', job .. ':unsuccessful') or 0) + cancelled
end

local ids, touched = {}, 0
for i, id in ipairs(read('ZRANGE', source, 0, count - 1)) do
  touched = touched + 1 + (state == 'delayed' and 0 or children_of(q.prefix .. id))
  if touched > 1000 and i > 1 then break end
  ids[i] = id
end

local cancelled = {}
for _, id in ipairs(ids) do
  local job = q.prefix .. id
  local h = read_job('HMGET', job, 'priority', 'parentKey', 'x:cancel') or {}
  local priority, parent = state == 'delayed' and h[1], state ~= 'delayed' and h[2]
  if (read_job('HLEN', job) or 0) == 0 then
    redis.call('ZREM', source, id)
  else
    push_ready(q, id, whole(priority) or 0, 'LPUSH')
    redis.call('ZREM', source, id)
    if state == 'delayed' then
      redis.call('HSET', job, 'delay', 0)
    else
      local known, lost = pcall(lost_children, job)
      if known and #lost > 0 then redis.call('ZREM', job .. ':unsuccessful', unpack(lost)) end
      if h[3] then cancelled[#cancelled + 1] = job end
      redis.call('HDEL', job, 'finishedOn', 'processedOn', 'returnvalue', 'result', 'failedReason', 'err', 'atm', 'stc',
        'defa', 'x:cancel')
      if parent then settle_edge(reopen_edge, parent, job) end
    end
    emit_trimming(q, meta, 'waiting', 'jobId', id, 'prev', state)
  end
end
-- Only now is it known which of their children run again with them.
for _, job in ipairs(cancelled) do
  local known, children = pcall(cancelled_children, job)
  if known then settle_cancelled(job, children, now) end
end
if #ids > 0 and not is_closed(q, meta) then ring(q) end
return { #ids, redis.call('ZCARD', source) }
