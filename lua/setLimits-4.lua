#!lua flags=allow-oom
--[[ setLimits-4: sets or takes off limits of a queue; they hold from the next fetch or add on.

KEYS[1]  meta     HASH
KEYS[2]  marker   ZSET
KEYS[3]  limiter  STRING
KEYS[4]  active   LIST

ARGV[1+] limits  a name and a number above 0 each, or empty to take it off: concurrency, x:maxlen (jobs that have not
                 started), max with duration (starts in so many ms)

Returns  0 done
Cost     O(1)
Repeat   safe
]]
--- @include "marker"
--- @include "meta"

local q = { meta = KEYS[1], marker = KEYS[2], limiter = KEYS[3], active = KEYS[4] }
local known = { concurrency = true, max = true, duration = true, ['x:maxlen'] = true }
local given, set, off = {}, {}, {}
for i = 1, #ARGV, 2 do
  local name, value = ARGV[i], ARGV[i + 1]
  if not known[name] or given[name] or not value or (value ~= '' and (whole(value) or 0) == 0) then
    refuse('ERR EMQ limits: concurrency, x:maxlen, max, duration, and a number above 0 or empty each')
  end
  given[name] = value
  if value == '' then
    off[#off + 1] = name
  else
    set[#set + 1] = name
    set[#set + 1] = value
  end
end
local max, duration = given.max or 'none', given.duration or 'none'
if (max == 'none') ~= (duration == 'none') or (max == '') ~= (duration == '') then
  refuse('ERR EMQ limits: max and duration belong together')
end
read_meta(q)
local used = whole(read_job('GET', q.limiter))

if #set > 0 then redis.call('HSET', q.meta, unpack(set)) end
if #off > 0 then redis.call('HDEL', q.meta, unpack(off)) end
-- The window that runs ends with the new duration at the latest. A manual limit, at the largest integer, runs on.
if duration ~= 'none' and used and used < 9007199254740991 then
  if duration == '' then
    redis.call('DEL', q.limiter)
  elseif redis.call('PTTL', q.limiter) > whole(duration) then
    redis.call('PEXPIRE', q.limiter, duration)
  end
end
if not is_closed(q, read_meta(q)) then ring(q) end
return 0
