#!lua flags=allow-oom
--[[ pause-7: stops or resumes the start of jobs. Ids stay in `wait`; a list that a 5.x client left in `paused` is merged.

KEYS[1]  source       LIST    wait when pausing, paused when resuming
KEYS[2]  destination  LIST    paused when pausing, wait when resuming
KEYS[3]  meta         HASH
KEYS[4]  prioritized  ZSET
KEYS[5]  events       STREAM
KEYS[6]  delayed      ZSET
KEYS[7]  marker       ZSET

ARGV[1]  action  paused or resumed
ARGV[2]  event   0: none

Returns  how many ids are still in the legacy list; call again without an event until 0
Cost     O(1000 ids)
Repeat   safe
]]
--- @include "events"
--- @include "marker"
--- @include "meta"

local q = {
  source = KEYS[1], destination = KEYS[2], meta = KEYS[3], prioritized = KEYS[4], events = KEYS[5], delayed = KEYS[6],
  marker = KEYS[7],
}
local action, silent = ARGV[1], ARGV[2] == '0'
local meta = read_meta(q)
local legacy = read('LRANGE', q.source, 0, 999)
local waiting = read('LLEN', q.destination)
local ready = read('ZCARD', q.prioritized) + waiting
read('ZCARD', q.delayed)

if action == 'paused' then
  redis.call('HSET', q.meta, 'paused', 1)
  redis.call('DEL', q.marker)
  if not silent then emit_trimming(q, meta, 'paused') end
  return 0
end
if action ~= 'resumed' then return redis.error_reply('ERR EMQ pause: paused or resumed') end
local left = 0
if #legacy > 0 then
  redis.call('RPUSH', q.destination, unpack(legacy))
  redis.call('LTRIM', q.source, #legacy, -1)
  left = redis.call('LLEN', q.source)
end
redis.call('HDEL', q.meta, 'paused')
if ready + #legacy > 0 then ring(q) else ring_delay(q) end
if not silent then emit_trimming(q, meta, 'resumed') end
return left
