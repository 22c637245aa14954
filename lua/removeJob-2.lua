#!lua flags=allow-oom
--[[ removeJob-2: deletes a job that is not running.

KEYS[1]  job     HASH
KEYS[2]  repeat  ZSET

ARGV[1]  id        of the job
ARGV[2]  children  unused until jobs have children
ARGV[3]  prefix    of the queue's keys

Returns  1 removed or was not there, 0 it is locked, -8 it is the pending iteration of a schedule
Cost     O(wait) for a waiting job: one LREM over the list (T7's exception)
Repeat   safe: answers 1
]]
--- @include "drop"
--- @include "events"
--- @include "meta"

local job, id, prefix = KEYS[1], ARGV[1], ARGV[3]
if job ~= prefix .. id then refuse('ERR EMQ the prefix is not that of the keys') end
local q = { meta = prefix .. 'meta', events = prefix .. 'events' }
local meta = read_meta(q)
local scheduler = read_job('HGET', job, 'rjk')
if scheduler then
  local pending = read('ZSCORE', KEYS[2], scheduler)
  if pending and id == 'repeat:' .. scheduler .. ':' .. pending then return -8 end
end
if redis.call('EXISTS', job .. ':lock') == 1 then return 0 end

-- The id leaves its key only after the hash is gone: a break in between leaves an orphan, which the next fetch drops.
local found = nil
local lists = { 'wait', 'paused', 'active' }
for _, state in ipairs({ 'completed', 'waiting-children', 'delayed', 'failed', 'prioritized' }) do
  if not found and read('ZSCORE', prefix .. state, id) then found = state end
end
for _, state in ipairs(lists) do
  if not found and read('LPOS', prefix .. state, id) then found = state end
end
local existed = redis.call('EXISTS', job) == 1
drop_job(job)
if found == 'wait' or found == 'paused' or found == 'active' then
  redis.call('LREM', prefix .. found, 0, id)
elseif found then
  redis.call('ZREM', prefix .. found, id)
end
if existed or found then emit_trimming(q, meta, 'removed', 'jobId', id, 'prev', found or 'unknown') end
return 1
