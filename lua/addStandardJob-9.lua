#!lua
--[[ addStandardJob-9: adds a job that may run now.

KEYS[1]  wait       LIST
KEYS[2]  paused     LIST    unused; part of the protocol's signature
KEYS[3]  meta       HASH
KEYS[4]  id         STRING
KEYS[5]  completed  ZSET    unused until the job has a parent
KEYS[6]  delayed    ZSET    unused; part of the protocol's signature
KEYS[7]  active     LIST
KEYS[8]  events     STREAM
KEYS[9]  marker     ZSET

ARGV[1]  head     msgpack [prefix, id or "" for the counter, name, timestamp ms or "", parent key, key of the parent's
                  dependencies, parent map, scheduler id, deduplication key, nonce of a custom id or "",
                  whether to run a finished job of this id anew, jobs to have room for (1), key of the first
                  job of a group that admits this one, what the parent must be: a map of `an`, its nonce, or of
                  `token` and `ats`, of the run that adds this child]; what is missing at its end is not wanted
ARGV[2]  payload  codec bytes
ARGV[3]  options  msgpack map, stored as JSON
ARGV[4]  field    args or data: where the payload goes
ARGV[5]  eta      empty; a due time makes a delayed add

Returns  {id, 1} added; {id, 0} the id exists; {id, 2} this very call had added it before; {id, 3} the owner of
         the deduplication id stays; -5 no such parent, -2, -6 the run that adds this child has lost its job, -7 the
         existing job has another living parent. The error EMQFULL: the queue has no room, and nothing was added
Cost     O(1)
Repeat   safe: answers 2 and touches nothing
]]
--- @include "clock"
--- @include "hash"

-- Most jobs want nothing that comes after the timestamp in their head, and find a queue without limits. They are added
-- here, before the functions of the other includes are made, which takes a third of an add. Whatever is not as usual
-- goes on to the general way below: nothing has been written then, and it says what is wrong.
local head, opts = cmsgpack.unpack(ARGV[1]), cmsgpack.unpack(ARGV[3])
local wants = head[5] or head[6] or head[7] or head[9] or (head[10] or '') ~= '' or head[11] or head[13] or head[14]
if not (wants or opts.lifo or opts.delay or opts.priority) and head[2] ~= '' and ARGV[5] == '' then
  local id, job = head[2], head[1] .. head[2]
  local set = redis.pcall('HMGET', KEYS[3], 'paused', 'concurrency', 'x:maxlen', 'opts.maxLenEvents')
  local cap = whole(set[4])
  if not (set.err or set[2] or set[3]) and cap and KEYS[3] == head[1] .. 'meta'
    and type(redis.pcall('LLEN', KEYS[1])) == 'number' and redis.call('EXISTS', job) == 0 then
    local now, opts_json = read_clock(head[4] or ''), next(opts) and cjson.encode(opts) or '{}'
    redis.pcall('INCR', KEYS[4])
    write_hash(job, head[3], ARGV[4], ARGV[2], opts_json, digits(now), '0', '0')
    redis.call('LPUSH', KEYS[1], id)
    if not set[1] then redis.pcall('ZADD', KEYS[9], '0', '0') end
    redis.pcall('XADD', KEYS[8], '*', 'event', 'added', 'jobId', id, 'name', head[3])
    redis.pcall('XADD', KEYS[8], 'MAXLEN', '~', digits(cap), '*', 'event', 'waiting', 'jobId', id)
    return { id, 1 }
  end
end

--- @include "marker"
--- @include "meta"
--- @include "store"

local q = { wait = KEYS[1], meta = KEYS[3], id = KEYS[4], active = KEYS[7], events = KEYS[8], marker = KEYS[9] }
local add = read_add(q, ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
local now = read_clock(add.timestamp)
local meta = read_meta(q)
read('LLEN', q.wait)
local reply, verdict = answer_early(q, meta, add, now)
if reply then return reply end

take_id(q, add)
store_job(add, digits(now))
redis.call(add.opts.lifo and 'RPUSH' or 'LPUSH', q.wait, add.id)
leave_finished(add)
if add.dedup then claim_dedup(q, meta, add, verdict, now) end
if add.dependencies then redis.call('SADD', add.dependencies, add.prefix .. add.id) end
if not is_closed(q, meta) then ring(q) end
emit(q, 'added', 'jobId', add.id, 'name', add.name)
emit_trimming(q, meta, 'waiting', 'jobId', add.id)
return { add.id, 1 }
