#!lua flags=no-writes
--[[ getFacts-1: what is known of some jobs, edges and keys at one moment, for those who look for damage.

KEYS[1]  prefix  of the queue's keys

ARGV[1]  deep    1: lists are searched for each job, which costs their length
ARGV[2]  ts      ms, or empty for the server's clock
ARGV[3+] things  three each: kind, name, and what else the kind needs. A job and its id; an edge, the parent's id and the
                 child's full key; dedup and its id; schedule and its id; key and its name; marker; counter, its name
                 and the least that it must be, for pc with the job that has this place; limiter; meta; stream;
                 finished, its name and "count age"

Returns  {now ms, types of the keys that hold ids, facts: {{stable, passing, fingerprint} ...}}: as many as were
         asked for, or fewer when the lists are so long that the rest is left to the next call
Cost     O(things), <= 1000; deep: O(wait + active) for each job, after 500,000 entries of which the call ends (T7)
Repeat   safe
]]
--- @include "clock"
--- @include "facts"

local prefix, deep = KEYS[1], ARGV[1] == '1'
local now = read_clock(ARGV[2])
if (#ARGV - 2) % 3 ~= 0 or #ARGV > 3002 then refuse('ERR EMQ facts: kind, name and more, of at most 1000 things') end
local found, spent = {}, 0
for i = 3, #ARGV, 3 do
  local stable, passing, fingerprint, cost = facts_of(prefix, ARGV[i], ARGV[i + 1], ARGV[i + 2], deep, now)
  found[#found + 1] = { stable, passing, fingerprint }
  spent = spent + cost
  if spent > 500000 then break end
end
return { now, place_types(prefix), found }
