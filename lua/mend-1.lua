#!lua flags=allow-oom
--[[ mend-1: repairs one damage, when the facts by which it was found still hold.

KEYS[1]  prefix  of the queue's keys

ARGV[1]  kind         of the thing, as in getFacts-1
ARGV[2]  name         of the thing
ARGV[3]  more         what else the kind needs
ARGV[4]  fingerprint  of the facts, as getFacts-1 gave it, deep
ARGV[5]  ts           ms, or empty for the server's clock
ARGV[6]  acts         msgpack [[word, more ...] ...], the names are those below
ARGV[7]  note         stored with a job that is there in its field x:doctor, with the time; or empty

Returns  1 mended, 0 the facts have changed or a key that holds ids is of a wrong type: nothing was written
Cost     O(wait + active) for a job: searches and LREMs over the lists (T7's exception)
Repeat   safe: answers 0, since the facts have changed
]]
--- @include "clock"
--- @include "drop"
--- @include "events"
--- @include "facts"
--- @include "follow"
--- @include "iteration"
--- @include "lock"
--- @include "marker"
--- @include "meta"
--- @include "parent"
--- @include "ready"
--- @include "scores"
--- @include "trim"

-- What a repair is made of. Each gets the job's keys `p`, the queue `q`, the time, and its own words. That the keys have
-- the right types is a part of the facts that were compared before.
local mend = {}

-- Into a place, before it leaves another one: a break in between doubles, never loses.
function mend.put(p, q, meta, now, place, score)
  if place == 'wait' then
    redis.call('RPUSH', q.wait, p.id)
  elseif place == 'active' then
    redis.call('LPUSH', q.active, p.id)
  elseif place == 'prioritized' then
    local priority = math.max(1, whole(redis.call('HGET', p.key, 'priority')) or 1)
    redis.call('ZADD', q.prioritized, priority_score(q, priority), p.id)
  elseif place == 'delayed' then
    redis.call('ZADD', q.delayed, score or now * 4096, p.id)
  else
    redis.call('ZADD', p.prefix .. place, score or now, p.id)
  end
end

-- Wakes and tells who should know that a job was put somewhere. After the move, so that nothing comes in between.
local function tell_put(p, q, meta, place)
  if place == 'delayed' then ring_delay(q) end
  if place == 'wait' or place == 'prioritized' then
    if not is_closed(q, meta) then ring(q) end
    emit_trimming(q, meta, 'waiting', 'jobId', p.id)
  elseif place == 'failed' then
    emit_trimming(q, meta, 'failed', 'jobId', p.id, 'failedReason', redis.call('HGET', p.key, 'failedReason') or '')
  end
end

function mend.take(p, _, _, _, place)
  if place == 'wait' or place == 'paused' or place == 'active' then
    redis.call('LREM', p.prefix .. place, 0, p.id)
  else
    redis.call('ZREM', p.prefix .. place, p.id)
  end
end

-- Leaves one entry of a list, the one that runs first.
function mend.once(p, _, _, _, place)
  local more = #redis.call('LPOS', p.prefix .. place, p.id, 'COUNT', 1000) - 1
  if more > 0 then redis.call('LREM', p.prefix .. place, more, p.id) end
end

function mend.set(p, _, _, _, ...)
  redis.call('HSET', p.key, ...)
end

function mend.unset(p, _, _, _, ...)
  redis.call('HDEL', p.key, ...)
end

-- A finish time, where it is missing: that of the set.
function mend.stamp(p, _, _, now, place)
  redis.call('HSET', p.key, 'finishedOn', redis.call('ZSCORE', p.prefix .. place, p.id) or now)
end

function mend.unlock(p, q)
  unlock(q, p.key, p.id, '')
end

function mend.expire(p, _, _, _, ms)
  redis.call('PEXPIRE', p.key .. ':lock', ms)
end

-- The end of a run whose owner is lost, as the stalled pass does it, without a limit.
function mend.recover(p, q, meta, now)
  redis.call('HSET', p.key, 'stc', (whole(redis.call('HGET', p.key, 'stc')) or 0) + 1)
  redis.call('RPUSH', q.wait, p.id)
  redis.call('LREM', q.active, 0, p.id)
  tell_put(p, q, meta, 'wait')
  emit(q, 'stalled', 'jobId', p.id)
end

function mend.release(p, _, _, now)
  release_parent(p, p.waiting, now)
end

-- Deletes keys that belong to no job, by their names.
function mend.del(p, _, _, _, ...)
  for _, name in ipairs({ ... }) do redis.call('DEL', p.prefix .. name) end
end

-- Hangs a child under its parent again.
function mend.link(p, _, _, _, parent_key)
  redis.call('SADD', parent_key .. ':dependencies', p.key)
end

-- Settles the edge between a parent and a child by how the child stands.
function mend.settle(_, _, _, now, parent_key, child_key)
  local p, c = parent_of(parent_key), parent_of(child_key)
  local h = read_job('HMGET', child_key, 'returnvalue', 'result', 'failedReason', 'parent', 'parentKey') or {}
  if redis.call('EXISTS', child_key) == 0 or h[5] ~= parent_key then return settle_gone(p, child_key, now) end
  if read('ZSCORE', c.prefix .. 'completed', c.id) then
    settle_completed(p, child_key, h[1] or h[2] or 'null', now)
  elseif read('ZSCORE', c.failed, c.id) then
    settle_failed(p, child_key, policy_of(h[4]), h[3] or '', now)
  end
end

function mend.let_go(_, q, meta, now, dedup_id, owner)
  let_go(q, meta, owner, dedup_id, now)
end

function mend.ring(_, q)
  ring(q)
end

function mend.ring_delay(_, q)
  ring_delay(q)
end

function mend.counter(p, _, _, _, name, least)
  redis.call('SET', p.prefix .. name, least)
end

function mend.limits(_, q, _, _, ...)
  redis.call('HDEL', q.meta, ...)
end

-- Adds the iteration of a schedule's current slot again, in the place of what is left of the one that is gone.
function mend.produce(p, q, meta, now, sid)
  local slot, record = tonumber(redis.call('ZSCORE', p.prefix .. 'repeat', sid)), read_record(p.prefix .. 'repeat:' .. sid)
  local iteration = iteration_of(q, sid, record, slot, record.ic, now)
  for _, name in ipairs(list_names()) do redis.call('LREM', p.prefix .. name, 0, iteration.id) end
  for _, name in ipairs(set_names()) do redis.call('ZREM', p.prefix .. name, iteration.id) end
  drop_job(p.prefix .. iteration.id)
  redis.call('DEL', p.prefix .. iteration.id .. ':lock')
  add_iteration(q, meta, iteration, now)
end

function mend.unschedule(p, _, _, _, sid)
  redis.call('ZREM', p.prefix .. 'repeat', sid)
end

-- Cuts the stream, 10,000 entries at a time (T7).
function mend.cut(_, q, meta)
  redis.call('XTRIM', q.events, 'MAXLEN', '~', event_cap(q, meta), 'LIMIT', 10000)
end

function mend.trim(p, q, _, now, name, count, age)
  trim_finished(q, p.prefix .. name, read_keep({ count = whole(count), age = whole(age) }), now, 250)
end

local prefix, kind, name = KEYS[1], ARGV[1], ARGV[2]
local now = read_clock(ARGV[5])
local acts = cmsgpack.unpack(ARGV[6])
if type(acts) ~= 'table' then refuse('ERR EMQ mend: a list of acts') end
for _, act in ipairs(acts) do
  if type(act) ~= 'table' or not mend[act[1]] then refuse('ERR EMQ mend: no such act') end
end
for i, found in ipairs(place_types(prefix)) do
  if found ~= 'none' and found ~= (i <= 3 and 'list' or 'zset') then return 0 end
end
local p = keys_of(prefix, name)
local q = {
  wait = p.wait, active = p.active, prioritized = p.prioritized, delayed = p.delayed, pc = p.pc, meta = p.meta,
  marker = p.marker, events = p.events, limiter = prefix .. 'limiter', stalled = prefix .. 'stalled', id = prefix .. 'id',
  prefix = prefix,
}
local meta = read_meta(q)
local _, _, fingerprint = facts_of(prefix, kind, name, ARGV[3], true, now)
if fingerprint ~= ARGV[4] then return 0 end

local put
for _, act in ipairs(acts) do
  local word = table.remove(act, 1)
  mend[word](p, q, meta, now, unpack(act))
  if word == 'put' then put = act[1] end
end
if put then tell_put(p, q, meta, put) end
if kind == 'job' and ARGV[7] ~= '' and redis.call('TYPE', p.key).ok == 'hash' then
  redis.call('HSET', p.key, 'x:doctor', string.format('%.0f %s', now, ARGV[7]))
end
return 1
