#!lua flags=allow-oom
--[[ moveToWaitingChildren-7: puts a running job aside until its children are done.

KEYS[1]  active            LIST
KEYS[2]  waiting-children  ZSET
KEYS[3]  job               HASH
KEYS[4]  job:dependencies  SET
KEYS[5]  job:unsuccessful  ZSET
KEYS[6]  stalled           SET
KEYS[7]  events            STREAM

ARGV[1]  token   of the run
ARGV[2]  child   full key of the one child to wait for, or empty for any
ARGV[3]  ts      ms, or empty for the server's clock
ARGV[4]  id      of the job
ARGV[5]  prefix  of the queue's keys
ARGV[6]  ats     of the run, or empty
ARGV[7]  how     1: this run has added children, which may have left no trace; 2: it has not begun, and is not counted

Returns  0 moved; 1 nothing to wait for any more, or it is to be cancelled; 2 there never was: with both the run goes on;
         -1 no such job, -2 no lock, -6 another lock, -3 not active, -9 a child has failed
Cost     O(active)
Repeat   safe: the second answers -2, -6 or -3 and writes nothing
]]
--- @include "clock"
--- @include "events"
--- @include "lock"

local q = {
  active = KEYS[1], waiting = KEYS[2], stalled = KEYS[6], events = KEYS[7], prefix = ARGV[5],
}
local job, dependencies, unsuccessful = KEYS[3], KEYS[4], KEYS[5]
local token, child, id = ARGV[1], ARGV[2], ARGV[4]
local now = read_clock(ARGV[3])
if job ~= q.prefix .. id then refuse('ERR EMQ the prefix is not that of the keys') end
read('ZCARD', q.waiting)
local code, h = leave_refusal(q, job, id, token, ARGV[6])
if code ~= 0 then return code end
if h[8] then return 1 end
if read('ZCARD', unsuccessful) > 0 then return -9 end
local open = child ~= '' and read('SISMEMBER', dependencies, child) or read('SCARD', dependencies)
local waited = redis.call('HGET', job, 'x:waited')
if open == 0 and not waited and ARGV[7] ~= '1'
  and redis.call('EXISTS', job .. ':processed', job .. ':failed') == 0 then
  return 2
end

if ARGV[7] ~= '2' then redis.call('HSET', job, 'x:waited', (whole(waited) or 0) + 1) end
if open == 0 then return 1 end
redis.call('ZADD', q.waiting, now, id)
redis.call('LREM', q.active, -1, id)
unlock(q, job, id, token)
emit(q, 'waiting-children', 'jobId', id, 'prev', 'active')
return 0
