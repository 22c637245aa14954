#!lua flags=allow-oom
--[[ extendLocks-1: renews the locks of all running jobs of one consumer.

KEYS[1]  stalled  SET

ARGV[1]  prefix    of the queue's keys
ARGV[2]  tokens    msgpack list
ARGV[3]  ids       msgpack list
ARGV[4]  duration  ms
ARGV[5]  starts    msgpack list of each run's ats, or empty. A lock that ran out is set again while the id is still in
                   `active` with the same ats: the server was away, nobody else has the job (T4)

Returns  the ids whose lock is lost
Cost     O(ids), at most 1000 a call (T7); a lost lock costs O(active)
Repeat   safe
]]
--- @include "checked"

local stalled, prefix, duration = KEYS[1], ARGV[1], ARGV[4]
local tokens, ids = cmsgpack.unpack(ARGV[2]), cmsgpack.unpack(ARGV[3])
local starts = ARGV[5] ~= '' and cmsgpack.unpack(ARGV[5]) or {}
if #ids > 1000 or #tokens ~= #ids then return redis.error_reply('ERR EMQ extendLocks: one token an id, 1000 at most') end

local function renew(id, token, ats)
  local job = prefix .. id
  local held = read_job('GET', job .. ':lock')
  if held == token then
    redis.call('PEXPIRE', job .. ':lock', duration)
    return true
  end
  if held or not ats or read_job('HGET', job, 'ats') ~= ats then return false end
  if not read_job('LPOS', prefix .. 'active', id, 'RANK', -1) then return false end
  redis.call('SET', job .. ':lock', token, 'PX', duration)
  return true
end

local lost = {}
for i, id in ipairs(ids) do
  if renew(id, tokens[i], starts[i]) then redis.pcall('SREM', stalled, id) else lost[#lost + 1] = id end
end
return lost
