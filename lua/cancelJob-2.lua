#!lua flags=allow-oom
--[[ cancelJob-2: cancels a job and its children that have not ended (T13). One that does not run moves to `failed`; one
that runs gets the mark `x:cancel`, which its consumer reads within a second (getCancelled-1). A run that completes in
spite of the mark is completed.

KEYS[1]  job               HASH
KEYS[2]  job:dependencies  SET

ARGV[1]  id      of the job
ARGV[2]  prefix  of the queue's keys
ARGV[3]  ts      ms, or empty for the server's clock
ARGV[4]  nonce   of the caller: what it did is known again by it
ARGV[5]  cursor  into the children; 0 at first, then the cursor of the last reply

Returns  {code, cursor, full keys of jobs left to cancel}; cursor 0: all children were seen. The code is 1 moved to
         failed, 2 it runs and is marked, 0 it had ended, -1 no such job, -8 the pending iteration of a schedule
Cost     O(100 jobs below it); O(wait) for each one that waits: a LPOS and a LREM over the list (T7's exception), after
         500,000 entries of which the rest is left to the next call
Repeat   safe: with the same nonce it answers the same
]]
--- @include "cancel"
--- @include "clock"

local job, dependencies, id, prefix, nonce, cursor = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[4], ARGV[5]
if job ~= prefix .. id then refuse('ERR EMQ the prefix is not that of the keys') end
if nonce == '' or not whole(cursor) then refuse('ERR EMQ cancelJob: a nonce, and a number as the cursor') end
local now = read_clock(ARGV[3])
read('SCARD', dependencies)

local code, deeper, spent = cancel_job(keys_of(prefix, id), nonce, now)
if not deeper then return { code, 0, {} } end

-- Down the tree. In pcall: the job is cancelled, whatever its children's keys hold; what is left is asked for by
-- itself, and then answers with its own error.
local page = redis.call('SSCAN', dependencies, cursor, 'COUNT', 100)
local open, left, seen = {}, {}, 0
local function note(keys)
  -- In order: what an error leaves behind must not depend on how the server keeps a set.
  table.sort(keys)
  for _, key in ipairs(keys) do open[#open + 1] = key end
end
note(page[2])
while #open > 0 do
  local child = parent_of(table.remove(open))
  if child and (seen >= 100 or spent >= 500000) then
    left[#left + 1] = child.key
  elseif child then
    seen = seen + 1
    local done, _, more, cost = pcall(cancel_job, child, nonce, now)
    local count = done and more and redis.pcall('SCARD', child.dependencies) or 0
    if done then spent = spent + cost end
    if not done or type(count) ~= 'number' or seen + count > 100 then
      left[#left + 1] = child.key
    elseif count > 0 then
      note(redis.call('SMEMBERS', child.dependencies))
    end
  end
end
return { code, tonumber(page[1]), left }
