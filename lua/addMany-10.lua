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
ARGV[5+] jobs    five each: id, nonce or empty, name, payload, eta ms or empty

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
local prefix, field = q.prefix, ARGV[3]
local now = read_clock(ARGV[2])
local opts = cmsgpack.unpack(ARGV[4])
if (#ARGV - 4) % 5 ~= 0 then return redis.error_reply('ERR EMQ addMany: five arguments a job') end
for i = 5, #ARGV, 5 do
  local id, eta = ARGV[i], ARGV[i + 4]
  if id == '' or (eta ~= '' and not whole(eta)) then refuse('ERR EMQ addMany: an id, and an eta in ms or empty') end
end
local meta = read_meta(q)
check_ready(q)
read('ZCARD', q.delayed)

if meta.maxlen then
  -- What is there already, or twice in this call, needs no room.
  local new, seen = 0, {}
  for i = 5, #ARGV, 5 do
    local id = ARGV[i]
    if not seen[id] and redis.call('EXISTS', prefix .. id) == 0 then new = new + 1 end
    seen[id] = true
  end
  local full = new > 0 and full_refusal(prefix, meta, new)
  if full then return full end
end

local delay, priority, opts_json = whole(opts.delay) or 0, whole(opts.priority) or 0, encode_opts(opts)
local adds = {}
for i = 5, #ARGV, 5 do
  adds[#adds + 1] = {
    prefix = prefix, id = ARGV[i], nonce = ARGV[i + 1], name = ARGV[i + 2], payload = ARGV[i + 3], field = field,
    opts_json = opts_json, delay = delay, priority = priority, lifo = opts.lifo, eta = whole(ARGV[i + 4]),
  }
end
if #adds == 0 then return {} end
local codes, taken, ready, later = enqueue_all(q, adds, opts.lifo, now)
if taken > 0 then
  redis.pcall('INCRBY', q.id, taken)
  trim_events(q, meta)
end
if ready and not is_closed(q, meta) then ring(q) end
if later then ring_delay(q) end
return codes
