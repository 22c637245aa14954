#!lua flags=allow-oom
--[[ reclaim-1: what a fetch took whose reply was lost. Each fetching call has a token of its own, so the jobs are those
in `active` whose lock holds exactly this token (T5).

KEYS[1]  active  LIST

ARGV[1]  prefix    of the queue's keys
ARGV[2]  token     of the lost call
ARGV[3]  duration  ms: the locks found are renewed
ARGV[4]  cursor    0 at first, then the cursor of the last reply

Returns  {jobs: {{fields, id, ats} ...}, cursor}; cursor 0: all of `active` was seen
Cost     O(1000 active ids) a call
Repeat   safe: the same jobs
]]
--- @include "checked"

local prefix, token, duration, cursor = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local ids = read('LRANGE', KEYS[1], cursor, cursor + 999)
local jobs = {}
for _, id in ipairs(ids) do
  local job = prefix .. id
  if read_job('GET', job .. ':lock') == token then
    local fields = read_job('HGETALL', job) or {}
    redis.call('PEXPIRE', job .. ':lock', duration)
    jobs[#jobs + 1] = { fields, id, whole(read_job('HGET', job, 'ats')) or 0 }
  end
end
return { jobs, #ids == 1000 and cursor + 1000 or 0 }
