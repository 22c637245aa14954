#!lua flags=allow-oom
--[[ removeChildDependency-1: detaches a child from its parent, which does not wait for it any more; the child goes on.

KEYS[1]  prefix  of the child's queue

ARGV[1]  job     full key of the child
ARGV[2]  parent  full key of the parent
ARGV[3]  ts      ms, or empty for the server's clock

Returns  0 detached, 1 the parent did not wait for it, -1 there is no such job, and none is waited for, -5 no such parent
Cost     O(1)
Repeat   safe: answers 1
]]
--- @include "clock"
--- @include "parent"

local job, p = ARGV[1], parent_of(ARGV[2])
if not p or string.sub(job, 1, #KEYS[1]) ~= KEYS[1] then
  refuse('ERR EMQ the full keys of a child and of its parent')
end
local now = read_clock(ARGV[3])
if redis.call('EXISTS', p.key) == 0 then return -5 end
local exists = (read_job('HLEN', job) or 0) > 0
if not exists and read('SISMEMBER', p.dependencies, job) == 0 then return -1 end

if not settle_gone(p, job, now) then return 1 end
if exists and redis.call('HGET', job, 'parentKey') == p.key then redis.call('HDEL', job, 'parentKey', 'parent') end
return 0
