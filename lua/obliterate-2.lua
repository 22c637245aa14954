#!lua flags=allow-oom
--[[ obliterate-2: deletes a paused queue with all its jobs. Only locks and deduplication keys with a time to live stay
until they run out.

KEYS[1]  meta    HASH
KEYS[2]  prefix  of the queue's keys

ARGV[1]  count  how many jobs at the most in this call, 1 to 250
ARGV[2]  force  1: running jobs too
ARGV[3]  ts     ms, or empty for the server's clock

Returns  {code, jobs deleted}; the code is 1 call again, 0 done, -1 the queue is not paused, -2 jobs are running
Cost     O(count)
Repeat   safe: takes the next ones
]]
--- @include "clock"
--- @include "meta"
--- @include "remove"

local prefix, count, force = KEYS[2], whole(ARGV[1]), ARGV[2] == '1'
if not count or count < 1 or count > 250 then refuse('ERR EMQ count: 1 to 250') end
local now = read_clock(ARGV[3])
local meta = read_meta({ meta = KEYS[1], prefix = prefix })
local lists = { active = true, wait = true, paused = true }
local states = { 'active', 'delayed', 'completed', 'wait', 'paused', 'prioritized', 'failed', 'waiting-children' }
for _, state in ipairs(states) do read(lists[state] and 'LLEN' or 'ZCARD', prefix .. state) end
local schedules = read('ZRANGE', prefix .. 'repeat', 0, count - 1)
if not meta.paused then return { -1, 0 } end
if not force and redis.call('LLEN', prefix .. 'active') > 0 then return { -2, 0 } end

local deleted = 0
for _, state in ipairs(states) do
  local key = prefix .. state
  if deleted < count then
    local most = count - deleted
    local ids = lists[state] and redis.call('LRANGE', key, -most, -1) or redis.call('ZRANGE', key, 0, most - 1)
    for i = #ids, 1, -1 do
      local id = ids[i]
      if state == 'active' then redis.call('DEL', prefix .. id .. ':lock') end
      remove_job(prefix, id, now, true, true, function()
        if lists[state] then redis.call('LREM', key, -1, id) else redis.call('ZREM', key, id) end
      end)
    end
    deleted = deleted + #ids
  end
end
for _, scheduler in ipairs(schedules) do
  redis.call('DEL', prefix .. 'repeat:' .. scheduler)
  redis.call('ZREM', prefix .. 'repeat', scheduler)
end
if deleted == count or #schedules == count then return { 1, deleted } end
redis.call('DEL', prefix .. 'events', prefix .. 'stalled-check', prefix .. 'stalled', prefix .. 'id', prefix .. 'pc',
  prefix .. 'marker', prefix .. 'limiter', prefix .. 'metrics:completed', prefix .. 'metrics:completed:data',
  prefix .. 'metrics:failed', prefix .. 'metrics:failed:data', KEYS[1])
return { 0, deleted }
