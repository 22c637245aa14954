#!lua flags=allow-oom
--[[ moveToActive-11: promotes what is due and takes the next jobs.

KEYS[1]   wait         LIST
KEYS[2]   active       LIST
KEYS[3]   prioritized  ZSET
KEYS[4]   events       STREAM
KEYS[5]   stalled      SET     unused; part of the protocol's signature
KEYS[6]   limiter      STRING
KEYS[7]   delayed      ZSET
KEYS[8]   paused       LIST    unused; part of the protocol's signature
KEYS[9]   meta         HASH
KEYS[10]  pc           STRING
KEYS[11]  marker       ZSET

ARGV[1]  prefix   of the queue's keys; job keys are made from it
ARGV[2]  ts       ms, or empty for the server's clock
ARGV[3]  options  msgpack {token, lockDuration ms, count, limiter?: {max, duration ms}, name?}

Returns  {jobs: {{fields, id, ats} ...}, rate limit ms, next due ms, ids dropped, now ms}
Cost     O(count + promoted), promoted <= 100
Repeat   not safe: each call takes other jobs. A lost reply is settled by reclaim-1 with the call's token.
]]
--- @include "clock"
--- @include "fetch"

local q = {
  wait = KEYS[1], active = KEYS[2], prioritized = KEYS[3], events = KEYS[4], limiter = KEYS[6],
  delayed = KEYS[7], meta = KEYS[9], pc = KEYS[10], marker = KEYS[11], prefix = ARGV[1],
}
local now = read_clock(ARGV[2])
local opts = cmsgpack.unpack(ARGV[3])
local meta = read_meta(q)

local reply, _, failure = fetch_safely(q, meta, now, opts)
if failure and #reply[1] == 0 then return redis.error_reply(failure) end
reply[5] = now
return reply
