#!lua flags=no-writes
--[[ getRanges-1: a part of the ids of each of some states.

KEYS[1]  prefix  of the queue's keys

ARGV[1]  start   0-based
ARGV[2]  end     inclusive; at most 1000 ids
ARGV[3]  asc     1: from the oldest on, otherwise from the newest
ARGV[4+] states  names of state keys

Returns  per state a list of ids; of a list the slice as it stands there, the newest first, whatever the direction
Cost     O(end - start); a part deep inside a list costs O(start)
Repeat   safe
]]
local prefix, first, last, asc = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
if last - first >= 1000 then return redis.error_reply('ERR EMQ getRanges: at most 1000 ids') end

local ranges = {}
for i = 4, #ARGV do
  local state = ARGV[i]
  local key = prefix .. state
  if state ~= 'wait' and state ~= 'paused' and state ~= 'active' then
    ranges[#ranges + 1] = redis.call(asc and 'ZRANGE' or 'ZREVRANGE', key, first, last)
  elseif asc then
    ranges[#ranges + 1] = redis.call('LRANGE', key, -(last + 1), -(first + 1))
  else
    ranges[#ranges + 1] = redis.call('LRANGE', key, first, last)
  end
end
return ranges
