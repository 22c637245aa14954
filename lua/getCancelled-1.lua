#!lua flags=no-writes
--[[ getCancelled-1: which of some running jobs are to be cancelled.

KEYS[1]  prefix  of the queue's keys

ARGV[1+] ids  of running jobs, at most 1000

Returns  the ids whose hash holds the mark of cancelJob-2
Cost     O(ids)
Repeat   safe
]]
local marked = {}
for _, id in ipairs(ARGV) do
  -- In pcall: a key of another type where a job should be must not hide the marks of the others.
  if redis.pcall('HEXISTS', KEYS[1] .. id, 'x:cancel') == 1 then marked[#marked + 1] = id end
end
return marked
