#!lua flags=no-writes
--[[ getCounts-1: how many ids stand in each state key.

KEYS[1]  prefix  of the queue's keys

ARGV[1+] states  names of state keys: wait, paused, active, delayed ...

Returns  a number per state, in order
Cost     O(states)
Repeat   safe
]]
local counts = {}
for i, state in ipairs(ARGV) do
  local is_list = state == 'wait' or state == 'paused' or state == 'active'
  counts[i] = redis.call(is_list and 'LLEN' or 'ZCARD', KEYS[1] .. state)
end
return counts
