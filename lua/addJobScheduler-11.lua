#!lua
--[[ addJobScheduler-11: makes a schedule, or changes it. Its pending iteration stays when its times are the same.

KEYS[1]   repeat       ZSET
KEYS[2]   delayed      ZSET
KEYS[3]   wait         LIST
KEYS[4]   paused       LIST
KEYS[5]   meta         HASH
KEYS[6]   prioritized  ZSET
KEYS[7]   marker       ZSET
KEYS[8]   id           STRING
KEYS[9]   events       STREAM
KEYS[10]  pc           STRING
KEYS[11]  active       LIST

ARGV[1]  next     ms of the first slot of a pattern; empty for an interval, whose slot is computed here
ARGV[2]  record   msgpack {name, field: args or data, by, and either pattern and tz or every ms; offset ms?,
                  startDate ms?, endDate ms?, limit?}; `by` says which code declares it, or is empty
ARGV[3]  sid      id of the schedule
ARGV[4]  payload  codec bytes of each iteration
ARGV[5]  options  msgpack map of each iteration's options
ARGV[6]  ts       ms, or empty for the server's clock
ARGV[7]  prefix   of the queue's keys

Returns  {id of the pending iteration, ms until it is due}; an empty id: the limit or the end is reached;
         -10 an iteration of this slot exists, -11 no slot of the interval is free
Cost     O(log delayed); O(wait) for an iteration that waits: one LPOS over the list (T7's exception)
Repeat   safe: the second finds the schedule as it is to be
]]
--- @include "clock"
--- @include "iteration"
--- @include "remove"

local function is_same_record(one, other)
  for name, value in pairs(one) do
    if other[name] ~= value then return false end
  end
  for name in pairs(other) do
    if one[name] == nil then return false end
  end
  return true
end

-- Stores the fields that are set and takes the others out; empty options are not stored.
local function write_record(key, record)
  local fields = { record.field, record.payload, 'x:by', record.by }
  local absent = { record.field == 'args' and 'data' or 'args' }
  for _, name in ipairs({ 'name', 'every', 'pattern', 'tz', 'startDate', 'endDate', 'limit', 'offset', 'opts', 'ic' }) do
    local value = record[name]
    if value == nil or (name == 'opts' and value == '{}') then
      absent[#absent + 1] = name
    else
      fields[#fields + 1] = name
      fields[#fields + 1] = value
    end
  end
  redis.call('HSET', key, unpack(fields))
  redis.call('HDEL', key, unpack(absent))
end

local q = {
  delayed = KEYS[2], wait = KEYS[3], paused = KEYS[4], meta = KEYS[5], prioritized = KEYS[6], marker = KEYS[7],
  id = KEYS[8], events = KEYS[9], pc = KEYS[10], active = KEYS[11], prefix = ARGV[7],
}
local schedules, sid, given = KEYS[1], ARGV[3], cmsgpack.unpack(ARGV[2])
local opts = cmsgpack.unpack(ARGV[5])
local now = read_clock(ARGV[6])
local meta = read_meta(q)
if sid == '' or type(given) ~= 'table' or type(opts) ~= 'table' or type(given.name) ~= 'string' then
  refuse('ERR EMQ schedule: an id, a record with a name, and options')
end
local every, pattern = whole(given.every), given.pattern
if (every == nil or every == 0) == (type(pattern) ~= 'string') then refuse('ERR EMQ schedule: either every or pattern') end
if pattern and not whole(ARGV[1]) then refuse('ERR EMQ schedule: a pattern needs the ms of its next slot') end

local record = {
  name = given.name, every = every, pattern = pattern, tz = given.tz, startDate = whole(given.startDate),
  endDate = whole(given.endDate), limit = whole(given.limit), offset = whole(given.offset) or 0,
  opts = encode_opts(opts), field = given.field == 'args' and 'args' or 'data', payload = ARGV[4],
  by = tostring(given.by or ''),
}
if every and record.offset >= every then refuse('ERR EMQ schedule: an offset is less than every') end
local key = schedules .. ':' .. sid
local old = read_record(key)
local prev = whole(read('ZSCORE', schedules, sid))
check_ready(q)
read('ZCARD', q.delayed)

local current = prev and iteration_id(sid, prev)
local place = prev and place_of(q, current)
local pending = place and place ~= 'active'

-- Which slot is next: that of the current iteration, for as long as the times are the same and it has not ended.
local same = prev and old.every == every and old.pattern == pattern and old.tz == record.tz
  and old.startDate == record.startDate and (record.offset == 0 or old.offset == record.offset)
if same and record.offset == 0 then record.offset = old.offset end
local slot = whole(ARGV[1])
if same and place then
  slot = prev
elseif every then
  slot, record.offset = next_slot(same and prev or nil, every, now, record.offset, record.startDate)
end
local stays = (pending and slot == prev) or (same and place == 'active')
record.ic = math.max(1, (pending or stays) and old.ic or old.ic + 1)
local over = (record.limit and record.ic > record.limit) or (record.endDate and slot > record.endDate)
if over and not prev then return { '', 0 } end
if not over and not stays then
  slot = free_slot(q, sid, slot, every)
  if not slot then return every and -11 or -10 end
end
if over then record.ic = old.ic end
local reply = { over and '' or iteration_id(sid, slot), over and 0 or math.max(0, slot - now) }
if stays and not over and is_same_record(old, record) then return reply end
local iteration = iteration_of(q, sid, record, slot, record.ic, now)

-- The new iteration first and the old one last: a break in between doubles, never loses (T2).
if not over and not stays then
  add_iteration(q, meta, iteration, now)
elseif not over and pending then
  local job = q.prefix .. current
  redis.call('HSET', job, 'name', record.name, record.field, record.payload, 'opts', iteration.opts_json, 'priority',
    iteration.priority)
  redis.call('HDEL', job, record.field == 'args' and 'data' or 'args')
end
if not over then redis.call('ZADD', schedules, slot, sid) end
write_record(key, record)
if pending and (over or not stays) then
  remove_job(q.prefix, current, now, true, true)
  if place == 'delayed' or place == 'prioritized' then
    redis.call('ZREM', q[place], current)
  else
    redis.call('LREM', q[place], -1, current)
  end
end
trim_events(q, meta)
return reply
