#!lua flags=allow-oom
--[[ drain-5: deletes the jobs that wait. The pending iteration of a schedule stays; a parent that waits for none but
deleted jobs goes with them.

KEYS[1]  wait         LIST
KEYS[2]  paused       LIST
KEYS[3]  delayed      ZSET
KEYS[4]  prioritized  ZSET
KEYS[5]  repeat       ZSET

ARGV[1]  prefix   of the queue's keys
ARGV[2]  delayed  1: delayed jobs too
ARGV[3]  ts       ms, or empty for the server's clock
ARGV[4]  at       which key to go on with; 1 at first, then that of the last reply
ARGV[5]  skip     how many ids of that key were left in place; 0 at first, then that of the last reply

Returns  {jobs deleted, at, skip}; at 0: done
Cost     O(250 ids)
Repeat   safe: takes the next ones
]]
--- @include "clock"
--- @include "pending"
--- @include "remove"

local prefix, at, skip = ARGV[1], whole(ARGV[4]), whole(ARGV[5])
local keys = { KEYS[1], KEYS[2], KEYS[4], ARGV[2] == '1' and KEYS[3] or nil }
if KEYS[1] ~= prefix .. 'wait' then refuse('ERR EMQ the prefix is not that of the keys') end
if not skip or not at or at < 1 then refuse('ERR EMQ drain: at is 1 or more, skip a number') end
local now = read_clock(ARGV[3])
read('LLEN', KEYS[1])
read('LLEN', KEYS[2])
read('ZCARD', KEYS[3])
read('ZCARD', KEYS[4])
read('ZCARD', KEYS[5])

local deleted, left = 0, 250
while at <= #keys and left > 0 do
  local key, is_list = keys[at], at <= 2
  local ids = is_list and redis.call('LRANGE', key, -(skip + left), -(skip + 1))
    or redis.call('ZRANGE', key, skip, skip + left - 1)
  for i = #ids, 1, -1 do
    local id = ids[i]
    if is_pending(KEYS[5], id) then
      skip = skip + 1
    else
      remove_job(prefix, id, now, true, true, function()
        if is_list then redis.call('LREM', key, -1, id) else redis.call('ZREM', key, id) end
      end)
      deleted = deleted + 1
    end
  end
  if #ids < left then at, skip = at + 1, 0 end
  left = left - #ids
end
return { deleted, at <= #keys and at or 0, skip }
