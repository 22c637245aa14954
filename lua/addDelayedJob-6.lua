#!lua
--[[ addDelayedJob-6: adds a job that must not run before its time.

KEYS[1]  marker     ZSET
KEYS[2]  meta       HASH
KEYS[3]  id         STRING
KEYS[4]  delayed    ZSET
KEYS[5]  completed  ZSET    unused until the job has a parent
KEYS[6]  events     STREAM

ARGV[1]  head     as in addStandardJob-9
ARGV[2]  payload  codec bytes
ARGV[3]  options  msgpack map, stored as JSON; delay ms counts from now
ARGV[4]  field    args or data: where the payload goes
ARGV[5]  eta      absolute due time, ms, instead of the delay; or empty

Returns  {id, 1} added; {id, 0} the id exists; {id, 2} this very call had added it before; {id, 3} the owner of
         the deduplication id stays; -5 no such parent, -2, -6 the run that adds this child has lost its job, -7 the
         existing job has another living parent. The error EMQFULL: the queue has no room, and nothing was added
Cost     O(log delayed)
Repeat   safe: answers 2 and touches nothing
]]
--- @include "clock"
--- @include "marker"
--- @include "meta"
--- @include "scores"
--- @include "store"

local q = { marker = KEYS[1], meta = KEYS[2], id = KEYS[3], delayed = KEYS[4], events = KEYS[6] }
local add = read_add(q, ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
local now = read_clock(add.timestamp)
local meta = read_meta(q)
local due = add.eta or now + add.delay
add.delay = math.max(0, due - now)
local score = delayed_score(q, due)
local reply, verdict = answer_early(q, meta, add, now)
if reply then return reply end

take_id(q, add)
store_job(add, digits(now))
redis.call('ZADD', q.delayed, score, add.id)
leave_finished(add)
if add.dedup then claim_dedup(q, meta, add, verdict, now) end
if add.dependencies then redis.call('SADD', add.dependencies, add.prefix .. add.id) end
emit(q, 'added', 'jobId', add.id, 'name', add.name)
emit_trimming(q, meta, 'delayed', 'jobId', add.id, 'delay', due)
ring_delay(q)
return { add.id, 1 }
