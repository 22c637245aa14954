#!lua flags=no-writes
--[[ isFinished-3: whether a job has ended, and how.

KEYS[1]  completed  ZSET
KEYS[2]  failed     ZSET
KEYS[3]  job        HASH

ARGV[1]  id     of the job
ARGV[2]  value  1: with the result fields

Returns  0 no, 1 completed, 2 failed, -1 no such job; with value {code, [field, value ...]}
Cost     O(1)
Repeat   safe
]]
local id = ARGV[1]
local code = 0
if redis.call('EXISTS', KEYS[3]) == 0 then
  code = -1
elseif redis.call('ZSCORE', KEYS[1], id) then
  code = 1
elseif redis.call('ZSCORE', KEYS[2], id) then
  code = 2
end
if ARGV[2] ~= '1' then return code end
if code <= 0 then return { code, {} } end
local names = { 'result', 'returnvalue', 'failedReason', 'err' }
local values, found = redis.call('HMGET', KEYS[3], unpack(names)), {}
for i, name in ipairs(names) do
  if values[i] then
    found[#found + 1] = name
    found[#found + 1] = values[i]
  end
end
return { code, found }
