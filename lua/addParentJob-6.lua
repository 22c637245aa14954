#!lua
--[[ addParentJob-6: adds a job that waits for its children, which are added after it in the same MULTI.

KEYS[1]  meta              HASH
KEYS[2]  id                STRING
KEYS[3]  delayed           ZSET    unused; part of the protocol's signature
KEYS[4]  waiting-children  ZSET
KEYS[5]  completed         ZSET    unused; part of the protocol's signature
KEYS[6]  events            STREAM

ARGV[1]  head     as in addStandardJob-9
ARGV[2]  payload  codec bytes
ARGV[3]  options  msgpack map, stored as JSON; a delay counts from when the children are done
ARGV[4]  field    args or data: where the payload goes
ARGV[5]  eta      empty

Returns  {id, 1} added; {id, 0} the id exists; {id, 2} this very call had added it before; {id, 3} the owner of
         the deduplication id stays; -5 no such parent, -2, -6 the run that adds this child has lost its job, -7 the
         existing job has another living parent. The error EMQFULL: the queue has no room, and nothing was added
Cost     O(log waiting-children)
Repeat   safe: answers 2 and touches nothing
]]
--- @include "clock"
--- @include "meta"
--- @include "store"

local q = { meta = KEYS[1], id = KEYS[2], waiting = KEYS[4], events = KEYS[6] }
local add = read_add(q, ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
local now = read_clock(add.timestamp)
local meta = read_meta(q)
read('ZCARD', q.waiting)
local reply, verdict = answer_early(q, meta, add, now)
if reply then return reply end

take_id(q, add)
store_job(add, digits(now))
redis.call('ZADD', q.waiting, now, add.id)
leave_finished(add)
if add.dedup then claim_dedup(q, meta, add, verdict, now) end
if add.dependencies then redis.call('SADD', add.dependencies, add.prefix .. add.id) end
emit(q, 'added', 'jobId', add.id, 'name', add.name)
emit_trimming(q, meta, 'waiting-children', 'jobId', add.id)
return { add.id, 1 }
