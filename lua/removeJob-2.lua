#!lua flags=allow-oom
--[[ removeJob-2: deletes a job that is not running, and its children too when asked.

KEYS[1]  job     HASH
KEYS[2]  repeat  ZSET

ARGV[1]  id        of the job
ARGV[2]  children  1: the jobs below it too, whether they have ended or not; else they go on by themselves
ARGV[3]  prefix    of the queue's keys
ARGV[4]  ts        ms, or empty for the server's clock

Returns  1 removed or was not there, 0 it or a job to be removed with it is locked, -8 it is the pending iteration of a
         schedule. An error when they are too many for one call (T7)
Cost     O(jobs); O(wait) more for each one that waits: a LPOS and a LREM over the list (T7's exception)
Repeat   safe: answers 1
]]
--- @include "clock"
--- @include "events"
--- @include "meta"
--- @include "parent"
--- @include "pending"
--- @include "place"
--- @include "remove"

local job, id, prefix = KEYS[1], ARGV[1], ARGV[3]
if job ~= prefix .. id then refuse('ERR EMQ the prefix is not that of the keys') end
if is_pending(KEYS[2], id) then return -8 end
local now = read_clock(ARGV[4])

-- All is read before the first job goes: which they are, parents first, and where each stands.
local found, seen = { keys_of(prefix, id) }, { [job] = true }
local function note_children(p)
  local count = (read_job('SCARD', p.dependencies) or 0) + (read_job('ZCARD', p.unsuccessful) or 0)
    + (read_job('HLEN', p.processed) or 0) + (read_job('HLEN', p.ignored) or 0)
  if #found + count > 1000 then refuse('ERR EMQ more than 1000 jobs are below ' .. job .. ': too many for a call') end
  local reads = {
    { 'SMEMBERS', p.dependencies }, { 'ZRANGE', p.unsuccessful, 0, -1 }, { 'HKEYS', p.processed },
    { 'HKEYS', p.ignored },
  }
  for _, words in ipairs(reads) do
    for _, key in ipairs(read_job(unpack(words)) or {}) do
      local child = parent_of(key)
      -- One that was removed since may have come back as another's child, or as nobody's.
      if child and not seen[key] and read_job('HGET', key, 'parentKey') == p.key then
        seen[key] = true
        found[#found + 1] = child
      end
    end
  end
end
local at = 1
while found[at] do
  local p = found[at]
  if redis.call('EXISTS', p.key .. ':lock') == 1 then return 0 end
  p.place, p.events_of, p.existed = find_place(p), read_meta(p), redis.call('EXISTS', p.key) == 1
  if ARGV[2] == '1' then note_children(p) end
  at = at + 1
end

-- The lowest first. An id leaves its key only after its hash is gone: a break in between leaves an orphan, which the
-- next fetch drops. Only the edge of the highest is settled: the parents of all others go too.
for i = #found, 1, -1 do
  local p = found[i]
  if i == 1 then
    remove_job(p.prefix, p.id, now, false, true)
  else
    release_dedup(p.prefix, p.id, read_job('HGET', p.key, 'deid'))
    drop_job(p.key)
  end
  if p.place == 'wait' or p.place == 'paused' or p.place == 'active' then
    redis.call('LREM', p.prefix .. p.place, 0, p.id)
  elseif p.place then
    redis.call('ZREM', p.prefix .. p.place, p.id)
  end
  if p.existed or p.place then emit_trimming(p, p.events_of, 'removed', 'jobId', p.id, 'prev', p.place or 'unknown') end
end
return 1
