--- @include "checked"
--- @include "limits"
--- @include "meta"
--- @include "parent"

-- The keys that hold ids: lists, and sorted sets; and what hangs on a job.
local function list_names()
  return { 'wait', 'paused', 'active' }
end

local function set_names()
  return { 'prioritized', 'delayed', 'waiting-children', 'completed', 'failed' }
end

local function hanging_names()
  return { 'lock', 'logs', 'dependencies', 'processed', 'failed', 'unsuccessful' }
end

local function type_of(key)
  local reply = redis.pcall('TYPE', key)
  return reply.ok or 'far'
end

-- The reply of a read, or `default` where the key is of another type, or in another slot.
local function look(default, ...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then return default end
  return reply
end

-- The types of the keys that hold ids, lists first.
local function place_types(prefix)
  local types = {}
  for _, name in ipairs(list_names()) do types[#types + 1] = type_of(prefix .. name) end
  for _, name in ipairs(set_names()) do types[#types + 1] = type_of(prefix .. name) end
  return types
end

-- How often an id stands in each list (2: twice or more), then its score in each set. Without `deep` the lists, whose
-- search costs their length, are left out.
local function places_of(prefix, id, deep)
  local found, cost = {}, 0
  for _, name in ipairs(list_names()) do
    if deep then
      local at = look({}, 'LPOS', prefix .. name, id, 'COUNT', 2)
      cost = cost + look(0, 'LLEN', prefix .. name)
      found[#found + 1] = #at
    else
      found[#found + 1] = -1
    end
  end
  for _, name in ipairs(set_names()) do found[#found + 1] = look(false, 'ZSCORE', prefix .. name, id) or '' end
  return found, cost
end

-- What a parent says of a child: {type of the parent, child is open, parent waits, child is recorded, timestamp}.
local function seen_by_parent(parent_key, child)
  local p = parent_key and parent_of(parent_key)
  if not p then return {} end
  local recorded = look(0, 'HEXISTS', p.processed, child) == 1 or look(0, 'HEXISTS', p.ignored, child) == 1
    or look(false, 'ZSCORE', p.unsuccessful, child)
  return {
    type_of(p.key), look(0, 'SISMEMBER', p.dependencies, child),
    look(false, 'ZSCORE', p.waiting, p.id) and 1 or 0, recorded and 1 or 0,
    look(false, 'HGET', p.key, 'timestamp') or '',
  }
end

-- A job: {type, places, fields, fields that are there, types of what hangs on it, its lock never ends, open children,
-- the view of its parent, the queue is paused}, and how long its lock lasts, ms.
local function job_facts(prefix, id, _, deep)
  local job = prefix .. id
  local places, cost = places_of(prefix, id, deep)
  local held, hanging = {}, {}
  for i, name in ipairs({ 'name', 'args', 'data', 'result', 'returnvalue', 'failedReason', 'defa' }) do
    held[i] = look(0, 'HEXISTS', job, name)
  end
  for i, name in ipairs(hanging_names()) do hanging[i] = type_of(job .. ':' .. name) end
  local fields = look({}, 'HMGET', job, 'timestamp', 'delay', 'priority', 'processedOn', 'finishedOn', 'ats', 'atm',
    'stc', 'parentKey', 'parent', 'opts', 'deid', 'x:edge')
  for i = 1, 13 do fields[i] = fields[i] or '' end
  local left = look(-2, 'PTTL', job .. ':lock')
  local stable = {
    type_of(job), places, fields, held, hanging, left == -1 and 1 or 0, look(0, 'SCARD', job .. ':dependencies'),
    seen_by_parent(fields[9] ~= '' and fields[9], job), look(0, 'HEXISTS', prefix .. 'meta', 'paused'),
  }
  return stable, left, cost
end

-- An edge: {child is open, parent waits, type of the child, its parentKey, its parent field, completed, failed}.
local function edge_facts(prefix, id, child)
  local p, c = keys_of(prefix, id), parent_of(child)
  if not c then return { 0, 0, 'far', '', '', 0, 0 }, 0, 0 end
  local h = look({ false, false }, 'HMGET', c.key, 'parentKey', 'parent')
  return {
    look(0, 'SISMEMBER', p.dependencies, child), look(false, 'ZSCORE', p.waiting, id) and 1 or 0, type_of(c.key),
    h[1] or '', h[2] or '', look(false, 'ZSCORE', c.prefix .. 'completed', c.id) and 1 or 0,
    look(false, 'ZSCORE', c.failed, c.id) and 1 or 0,
  }, 0, 0
end

-- A deduplication id: {type of de, type of dn, owner, de never ends, type of the owner, it has ended, its own id}.
local function dedup_facts(prefix, dedup_id)
  local key = prefix .. 'de:' .. dedup_id
  local owner = look(false, 'GET', key) or ''
  local ended = look(false, 'ZSCORE', prefix .. 'completed', owner) or look(false, 'ZSCORE', prefix .. 'failed', owner)
  return {
    type_of(key), type_of(prefix .. 'dn:' .. dedup_id), owner, look(nil, 'PTTL', key) == -1 and 1 or 0,
    type_of(prefix .. owner), ended and 1 or 0, look(false, 'HGET', prefix .. owner, 'deid') or '',
  }, 0, 0
end

-- A schedule: {its slot, type of the record, the pending iteration is there, limit, iterations so far, end}.
local function schedule_facts(prefix, sid)
  local slot, record = look(false, 'ZSCORE', prefix .. 'repeat', sid) or '', prefix .. 'repeat:' .. sid
  local h = look({ false, false, false }, 'HMGET', record, 'limit', 'ic', 'endDate')
  local pending = slot == '' and 0 or redis.call('EXISTS', record .. ':' .. string.format('%.0f', tonumber(slot)))
  return { slot, type_of(record), pending, h[1] or '', h[2] or '', h[3] or '' }, 0, 0
end

-- One of the queue's own keys: {its type}.
local function key_facts(prefix, name)
  return { type_of(prefix .. name) }, 0, 0
end

-- What wakes consumers: {something may start, the next of `wait`, the next of `prioritized`, marker 0, marker 1, the
-- earliest delayed id, its score}.
local function marker_facts(prefix)
  local q = {
    prefix = prefix, meta = prefix .. 'meta', active = prefix .. 'active', limiter = prefix .. 'limiter',
  }
  local known, meta = pcall(read_meta, q)
  local open = known and not is_closed(q, meta)
  if open then
    local used, left = whole(look(nil, 'GET', q.limiter)) or 0, look(0, 'PTTL', q.limiter)
    open = left <= 0 or used < (meta.max or 9007199254740991)
  end
  local due = look({}, 'ZRANGE', prefix .. 'delayed', 0, 0, 'WITHSCORES')
  return {
    open and 1 or 0, look(false, 'LINDEX', prefix .. 'wait', -1) or '',
    look({}, 'ZRANGE', prefix .. 'prioritized', 0, 0)[1] or '', look(false, 'ZSCORE', prefix .. 'marker', '0') or '',
    look(false, 'ZSCORE', prefix .. 'marker', '1') or '', due[1] or '', due[2] or '',
  }, 0, 0
end

-- A counter: {it is behind the least that it must be}. The counter of places may begin anew once all places are free, so
-- the job that had the highest must still have it.
local function counter_facts(prefix, name, more)
  local value = whole(look(false, 'GET', prefix .. name) or 0)
  local least, holder = string.match(more, '^(%d+) ?(.*)$')
  least = whole(least) or refuse('ERR EMQ facts: the least of a counter is a whole number')
  local behind = not value or value < least
  if behind and name == 'pc' then
    local score = look(false, 'ZSCORE', prefix .. 'prioritized', holder)
    behind = score and tonumber(score) % 4294967296 == least
  end
  return { behind and 1 or 0 }, 0, 0
end

-- The limiter: {type, it never ends}.
local function limiter_facts(prefix)
  local key = prefix .. 'limiter'
  return { type_of(key), look(nil, 'PTTL', key) == -1 and 1 or 0 }, 0, 0
end

-- The limits of the queue, as `meta` has them.
local function meta_facts(prefix)
  local h = look({}, 'HMGET', prefix .. 'meta', 'concurrency', 'max', 'duration', 'x:maxlen', 'opts.maxLenEvents')
  for i = 1, 5 do h[i] = h[i] or '' end
  return h, 0, 0
end

-- The stream: {how many events are above twice its cap}.
local function stream_facts(prefix)
  local cap = whole(look(nil, 'HGET', prefix .. 'meta', 'opts.maxLenEvents')) or 10000
  return { look(0, 'XLEN', prefix .. 'events') > 2 * cap + 1000 and 1 or 0 }, 0, 0
end

-- A finished set: {ids above `count`, ids older than `age`, each 1 or 0}; the limits come as "count age", empty for none.
local function finished_facts(prefix, name, limits, _, now)
  local count, age = string.match(limits, '^(%d*) (%d*)$')
  local key = prefix .. name
  local first = look({}, 'ZRANGE', key, 0, 0, 'WITHSCORES')
  local over = whole(count) and look(0, 'ZCARD', key) > whole(count)
  local old = whole(age) and first[2] and now - tonumber(first[2]) > whole(age) * 1000
  return { over and 1 or 0, old and 1 or 0 }, 0, 0
end

-- Facts of one kind about one thing: what must not change until a repair, what may, a fingerprint, and the cost.
local function facts_of(prefix, kind, name, more, deep, now)
  local find = ({
    job = job_facts, edge = edge_facts, dedup = dedup_facts, schedule = schedule_facts, key = key_facts,
    marker = marker_facts, counter = counter_facts, limiter = limiter_facts, meta = meta_facts, stream = stream_facts,
    finished = finished_facts,
  })[kind]
  if not find then refuse('ERR EMQ facts: no such kind of thing') end
  local stable, passing, cost = find(prefix, name, more, deep, now)
  return stable, passing, redis.sha1hex(cmsgpack.pack(stable)), cost
end
