#!lua flags=no-writes
--[[ getOwned-1: which running jobs belong to one consumer: the tokens of all its fetches begin alike.

KEYS[1]  active  LIST

ARGV[1]  prefix  of the queue's keys
ARGV[2]  owner   what the tokens begin with
ARGV[3]  cursor  0 at first, then the cursor of the last reply

Returns  {runs: {{id, token, ats} ...}, cursor}; cursor 0: all of `active` was seen
Cost     O(1000 active ids) a call
Repeat   safe
]]
--- @include "checked"

local prefix, owner, cursor = ARGV[1], ARGV[2], tonumber(ARGV[3])
local ids = read('LRANGE', KEYS[1], cursor, cursor + 999)
local runs = {}
for _, id in ipairs(ids) do
  local job = prefix .. id
  local token = read_job('GET', job .. ':lock')
  if token and string.sub(token, 1, #owner) == owner then
    runs[#runs + 1] = { id, token, whole(read_job('HGET', job, 'ats')) or 0 }
  end
end
return { runs, #ids == 1000 and cursor + 1000 or 0 }
