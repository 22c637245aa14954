--- @include "checked"
--- @include "enqueue"
--- @include "marker"
--- @include "meta"

-- The id of the iteration of one slot (protocol §9.1).
local function iteration_id(sid, slot)
  return 'repeat:' .. sid .. ':' .. string.format('%.0f', slot)
end

-- NEXT of protocol §9.2: the slot of an interval that comes after `prev`, or its first one, ms. Missed ones are skipped.
-- Also returns the offset of the slots within the interval.
local function next_slot(prev, every, now, offset, start)
  local grid = math.floor(now / every) * every + offset
  local slot = now
  if prev and prev + every >= now then
    slot = prev + every
  elseif prev or (offset > 0 and not start) then
    slot = grid > now and grid or grid + every
  elseif start then
    slot = math.max(start, now)
  end
  return slot, offset > 0 and offset or slot % every
end

-- The first slot from this one on whose iteration does not exist; of an interval 32 more are tried.
local function free_slot(q, sid, slot, every)
  for _ = 0, every and 32 or 0 do
    if redis.call('EXISTS', q.prefix .. iteration_id(sid, slot)) == 0 then return slot end
    slot = slot + (every or 0)
  end
  return nil
end

-- The name of the key in which an iteration stands that has not ended; an id without a job stands nowhere.
local function place_of(q, id)
  if redis.call('EXISTS', q.prefix .. id) == 0 then return nil end
  for _, name in ipairs({ 'delayed', 'prioritized' }) do
    if read('ZSCORE', q[name], id) then return name end
  end
  for _, name in ipairs({ 'wait', 'active', 'paused' }) do
    if read('LPOS', q[name], id) then return name end
  end
  return nil
end

-- A schedule's record; what is no number where one belongs is not set.
local function read_record(key)
  local v = read('HMGET', key, 'name', 'pattern', 'tz', 'opts', 'data', 'args', 'every', 'startDate', 'endDate',
    'limit', 'offset', 'ic', 'x:by')
  local every = whole(v[7])
  return {
    name = v[1] or '', pattern = v[2] or nil, tz = v[3] or nil, opts = v[4] or '{}', field = v[6] and 'args' or 'data',
    payload = v[6] or v[5] or '{}', every = every and every > 0 and every or nil, startDate = whole(v[8]),
    endDate = whole(v[9]), limit = whole(v[10]), offset = whole(v[11]) or 0, ic = whole(v[12]) or 0, by = v[13] or '',
  }
end

-- The iteration of a slot, to be enqueued: the record's template, and what other clients look for in an iteration's
-- options. `count` is its number. Writes nothing. Options that are no JSON must not end a schedule.
local function iteration_of(q, sid, record, slot, count, now)
  local decoded, opts = pcall(cjson.decode, record.opts)
  if not decoded or type(opts) ~= 'table' then opts = {} end
  opts.jobId, opts.delay, opts.timestamp, opts.repeatJobKey = iteration_id(sid, slot), math.max(0, slot - now), now, sid
  if record.pattern then opts.prevMillis = slot end
  opts['repeat'] = {
    every = record.every, pattern = record.pattern, tz = record.tz, limit = record.limit, count = count,
    startDate = record.startDate, endDate = record.endDate, offset = record.offset,
  }
  return {
    prefix = q.prefix, id = opts.jobId, name = record.name, field = record.field, payload = record.payload, nonce = '',
    opts_json = encode_opts(opts), priority = whole(opts.priority) or 0, lifo = opts.lifo, rjk = sid, delay = 0,
    eta = slot > now and slot or false,
  }
end

-- Puts an iteration into the queue, wakes who should know, and counts the id as every add does.
local function add_iteration(q, meta, iteration, now)
  local ready = enqueue(q, iteration, now)
  redis.pcall('INCR', q.id)
  if ready and not is_closed(q, meta) then ring(q) end
  ring_delay(q)
end
