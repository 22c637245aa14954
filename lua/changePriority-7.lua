#!lua flags=allow-oom
--[[ changePriority-7: gives a job another priority; one that waits takes its new place.

KEYS[1]  wait         LIST
KEYS[2]  paused       LIST
KEYS[3]  meta         HASH
KEYS[4]  prioritized  ZSET
KEYS[5]  active       LIST
KEYS[6]  pc           STRING
KEYS[7]  marker       ZSET

ARGV[1]  priority  0 to 2097151
ARGV[2]  prefix    of the queue's keys
ARGV[3]  id        of the job
ARGV[4]  lifo      1: before those of the same priority

Returns  0 done, -1 no such job
Cost     O(wait) for a job that waits without a priority: a LPOS and a LREM over the list (T7's exception)
Repeat   safe
]]
--- @include "marker"
--- @include "meta"
--- @include "place"
--- @include "ready"

local q = {
  wait = KEYS[1], paused = KEYS[2], meta = KEYS[3], prioritized = KEYS[4], active = KEYS[5], pc = KEYS[6],
  marker = KEYS[7], prefix = ARGV[2],
}
local priority, id, job, lifo = whole(ARGV[1]), ARGV[3], ARGV[2] .. ARGV[3], ARGV[4] == '1'
if not priority or priority > 2097151 then refuse('ERR EMQ priority: 0 to 2097151') end
local meta = read_meta(q)
check_ready(q)
if (read_job('HLEN', job) or 0) == 0 then return -1 end
local source, side = read('ZSCORE', q.prioritized, id) and q.prioritized, nil
for _, list in ipairs({ q.wait, q.paused }) do
  if not source then
    side = find_in_list(list, id)
    source = side and list
  end
end

redis.call('HSET', job, 'priority', priority)
if not source or (source == q.wait and priority == 0 and not lifo) then return 0 end
if priority > 0 and lifo then
  redis.call('ZADD', q.prioritized, priority * 4294967296, id)
else
  push_ready(q, id, priority, lifo and 'RPUSH' or 'LPUSH')
end
if side then
  -- Not from the side where it was pushed just now.
  if source == q.wait and lifo then side = 1 end
  redis.call('LREM', source, side, id)
elseif priority == 0 then
  redis.call('ZREM', q.prioritized, id)
end
if not is_closed(q, meta) then ring(q) end
return 0
