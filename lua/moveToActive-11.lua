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

-- What wakes a sleeper, as a rule, is one job in a queue that is not paused and has no limits, and nothing else is due.
-- That is taken here, before the functions of the other includes are made, which takes a third of such a fetch.
-- Whatever is not as usual goes on to the general way below: nothing has been written then, and it says what is wrong.
local opts = cmsgpack.unpack(ARGV[3])
local lock_ms, most, name = whole(opts.lockDuration), whole(opts.count), opts.name
local usual = type(opts.token) == 'string' and opts.token ~= '0' and type(name) == 'string' and not opts.limiter
if usual and (lock_ms or 0) > 0 and (most or 0) > 0 and most <= 100 and KEYS[9] == ARGV[1] .. 'meta' then
  local ids = redis.pcall('LRANGE', KEYS[1], -most, -1)
  local set = redis.pcall('HMGET', KEYS[9], 'paused', 'concurrency', 'max')
  local due = redis.pcall('ZRANGE', KEYS[7], 0, 0, 'WITHSCORES')
  local now, due_ms = read_clock(ARGV[2]), due[2] and math.floor(due[2] / 4096) or 0
  if not (ids.err or set.err or due.err or set[1] or set[2] or set[3] or redis.pcall('GET', KEYS[6]))
    and #ids == 1 and redis.pcall('ZCARD', KEYS[3]) == 0 and (due_ms > now or not due[2]) then
    local id, job, ats = ids[1], ARGV[1] .. ids[1], 1
    local fields = redis.pcall('HGETALL', job)
    for i = 1, #fields, 2 do
      if fields[i] == 'ats' then ats = (whole(fields[i + 1]) or 0) + 1 end
    end
    if #fields > 0 and redis.pcall('LMOVE', KEYS[1], KEYS[2], 'RIGHT', 'LEFT') == id then
      redis.call('SET', job .. ':lock', opts.token, 'PX', digits(lock_ms))
      redis.call('HSET', job, 'processedOn', digits(now), 'ats', digits(ats), 'pb', name)
      redis.pcall('XADD', KEYS[4], '*', 'event', 'active', 'jobId', id, 'prev', 'waiting')
      if most == 1 then redis.pcall('ZADD', KEYS[11], '0', '0') end
      return { { { fields, id, ats } }, 0, most > 1 and due_ms or 0, {}, now }
    end
  end
end

--- @include "fetch"

local q = {
  wait = KEYS[1], active = KEYS[2], prioritized = KEYS[3], events = KEYS[4], limiter = KEYS[6],
  delayed = KEYS[7], meta = KEYS[9], pc = KEYS[10], marker = KEYS[11], prefix = ARGV[1],
}
local now = read_clock(ARGV[2])
local meta = read_meta(q)

local reply, _, failure = fetch_safely(q, meta, now, opts)
if failure and #reply[1] == 0 then return redis.error_reply(failure) end
reply[5] = now
return reply
