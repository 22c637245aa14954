#!lua flags=allow-oom
--[[ cleanJobsInSet-3: deletes old jobs of one state, the oldest first. The pending iteration of a schedule stays; a
parent that waits for none but deleted jobs goes with them.

KEYS[1]  target  ZSET    or LIST, of the state
KEYS[2]  events  STREAM
KEYS[3]  repeat  ZSET

ARGV[1]  prefix  of the queue's keys
ARGV[2]  age     ms: what is younger stays. Counted from the end of a job that has ended, from its last start or else
                 its creation of one that waits
ARGV[3]  limit   how many at the most; 0 for all
ARGV[4]  state   completed, failed, delayed, prioritized, wait or paused
ARGV[5]  ts      ms, or empty for the server's clock
ARGV[6]  skip    how many ids were left in place; 0 at first, then that of the last reply

Returns  {ids deleted, whether to call again, skip}
Cost     O(250 ids); in a list O(skip) more for each deleted one, after 500,000 entries the rest is left to the next call
Repeat   safe: takes the next ones
]]
--- @include "clock"
--- @include "events"
--- @include "pending"
--- @include "remove"

local key, prefix, age, limit, state, skip = KEYS[1], ARGV[1], whole(ARGV[2]), whole(ARGV[3]), ARGV[4], whole(ARGV[6])
local q = { events = KEYS[2] }
local since = {
  completed = {}, failed = {}, delayed = { 'processedOn', 'timestamp' }, prioritized = { 'timestamp' },
  wait = { 'finishedOn', 'processedOn', 'timestamp' }, paused = { 'finishedOn', 'processedOn', 'timestamp' },
}
local fields = since[state]
if not fields or key ~= prefix .. state then refuse('ERR EMQ clean: a state that can be cleaned, and its key') end
if not age or not limit or not skip then refuse('ERR EMQ age: ms; limit and skip: numbers') end
local bound = read_clock(ARGV[5]) - age
local is_list, has_ended = state == 'wait' or state == 'paused', #fields == 0
local most = 250
read('ZCARD', KEYS[3])

local function is_old(id)
  if has_ended then return true end
  for _, time in ipairs(read_job('HMGET', prefix .. id, unpack(fields)) or {}) do
    if time then return whole(time) ~= nil and whole(time) <= bound end
  end
  return true
end

local ids
if is_list then
  ids = read('LRANGE', key, -(skip + most), -(skip + 1))
elseif has_ended then
  ids = read('ZRANGEBYSCORE', key, '-inf', bound, 'LIMIT', skip, most)
else
  ids = read('ZRANGE', key, skip, skip + most - 1)
end
local deleted, spent, seen = {}, 0, 0
while seen < #ids and spent < 500000 and (limit == 0 or #deleted < limit) do
  local id = ids[is_list and #ids - seen or seen + 1]
  seen = seen + 1
  if is_pending(KEYS[3], id) or not is_old(id) then
    skip = skip + 1
  else
    remove_job(prefix, id, bound + age, true, true, function()
      if is_list then redis.call('LREM', key, -1, id) else redis.call('ZREM', key, id) end
    end)
    spent = spent + (is_list and skip or 0)
    deleted[#deleted + 1] = id
  end
end
if #deleted > 0 then emit(q, 'cleaned', 'count', #deleted) end
local more = seen < #ids or #ids == most
return { deleted, more and (limit == 0 or #deleted < limit) and 1 or 0, skip }
