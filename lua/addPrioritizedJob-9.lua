#!lua
--[[ addPrioritizedJob-9: adds a job that may run now, after those without a priority.

KEYS[1]  marker       ZSET
KEYS[2]  meta         HASH
KEYS[3]  id           STRING
KEYS[4]  prioritized  ZSET
KEYS[5]  delayed      ZSET    unused; part of the protocol's signature
KEYS[6]  completed    ZSET    unused until the job has a parent
KEYS[7]  active       LIST
KEYS[8]  events       STREAM
KEYS[9]  pc           STRING

ARGV[1]  head     as in addStandardJob-9
ARGV[2]  payload  codec bytes
ARGV[3]  options  msgpack map, stored as JSON; priority 1...2097151
ARGV[4]  field    args or data: where the payload goes
ARGV[5]  eta      empty; a due time makes a delayed add

Returns  {id, 1} added; {id, 0} the id exists; {id, 2} this very call had added it before; {id, 3} the owner of
         the deduplication id stays; -5 no such parent, -2, -6 the run that adds this child has lost its job, -7 the
         existing job has another living parent. The error EMQFULL: the queue has no room, and nothing was added
Cost     O(log prioritized)
Repeat   safe: answers 2 and touches nothing
]]
--- @include "clock"
--- @include "marker"
--- @include "meta"
--- @include "scores"
--- @include "store"

local q = {
  marker = KEYS[1], meta = KEYS[2], id = KEYS[3], prioritized = KEYS[4], active = KEYS[7], events = KEYS[8],
  pc = KEYS[9],
}
local add = read_add(q, ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
local now = read_clock(add.timestamp)
local meta = read_meta(q)
read('ZCARD', q.prioritized)
local reply, verdict = answer_early(q, meta, add, now)
if reply then return reply end

take_id(q, add)
local score = priority_score(q, add.priority)
store_job(add, digits(now))
redis.call('ZADD', q.prioritized, score, add.id)
leave_finished(add)
if add.dedup then claim_dedup(q, meta, add, verdict, now) end
if add.dependencies then redis.call('SADD', add.dependencies, add.prefix .. add.id) end
if not is_closed(q, meta) then ring(q) end
emit(q, 'added', 'jobId', add.id, 'name', add.name)
emit_trimming(q, meta, 'waiting', 'jobId', add.id)
return { add.id, 1 }
