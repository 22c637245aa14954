#!lua
--[[ addMany-10: adds many jobs, each answered by itself: the batch form of the add scripts.

KEYS[1]   wait         LIST
KEYS[2]   active       LIST
KEYS[3]   prioritized  ZSET
KEYS[4]   delayed      ZSET
KEYS[5]   completed    ZSET    unused until a job has a parent
KEYS[6]   events       STREAM
KEYS[7]   meta         HASH
KEYS[8]   id           STRING
KEYS[9]   pc           STRING
KEYS[10]  marker       ZSET

ARGV[1]  prefix  of the queue's keys
ARGV[2]  ts      ms, or empty for the server's clock
ARGV[3]  field   args or data: where the payloads go
ARGV[4]  shared  msgpack options of every job of this call
ARGV[5]  name    of the task
ARGV[6]  nonce   or empty for ids that we made
ARGV[7]  eta     ms or empty
ARGV[8+] jobs    two each: id, payload

Returns  a code per job: 1 added, 0 the id exists, 2 this very call had added it before. The error EMQFULL: the queue
         has no room for all of them, and none was added
Cost     O(jobs); the client sends at most 250 a call (T7)
Repeat   safe: answers 2 and touches nothing
]]
--- @include "clock"
--- @include "enqueue_many"
--- @include "marker"
--- @include "meta"

local q = {
  wait = KEYS[1], active = KEYS[2], prioritized = KEYS[3], delayed = KEYS[4], events = KEYS[6], meta = KEYS[7],
  id = KEYS[8], pc = KEYS[9], marker = KEYS[10], prefix = ARGV[1],
}
local now = read_clock(ARGV[2])
local opts = cmsgpack.unpack(ARGV[4])
if ARGV[7] ~= '' and not whole(ARGV[7]) then refuse('ERR EMQ addMany: an eta in ms or empty') end
if #ARGV % 2 == 0 then refuse('ERR EMQ addMany: two arguments a job') end
local ids, payloads, count = {}, {}, 0
for i = 8, #ARGV, 2 do
  if ARGV[i] == '' then refuse('ERR EMQ addMany: an id') end
  count = count + 1
  ids[count], payloads[count] = ARGV[i], ARGV[i + 1]
end
local like = {
  prefix = q.prefix, field = ARGV[3], name = ARGV[5], nonce = ARGV[6], eta = whole(ARGV[7]), lifo = opts.lifo,
  opts_json = encode_opts(opts), delay = whole(opts.delay) or 0, priority = whole(opts.priority) or 0,
}
local meta = read_meta(q)
check_ready(q)
read('ZCARD', q.delayed)

local codes, new = codes_of(like, ids)
local full = new > 0 and full_refusal(q.prefix, meta, new)
if full then return full end
local taken = 0
for _, code in ipairs(codes) do
  if code ~= 2 then taken = taken + 1 end
end
if taken == 0 then return codes end
local is_ready = enqueue_all(q, like, ids, payloads, codes, opts.lifo and 'RPUSH' or 'LPUSH', now)
redis.pcall('INCRBY', q.id, taken)
trim_events(q, meta)
if new > 0 and is_ready and not is_closed(q, meta) then ring(q) end
if new > 0 and not is_ready then ring_delay(q) end
return codes
