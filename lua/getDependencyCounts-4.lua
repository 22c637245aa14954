#!lua flags=no-writes
--[[ getDependencyCounts-4: how many children of a job have ended, and how.

KEYS[1]  job:processed     HASH
KEYS[2]  job:dependencies  SET
KEYS[3]  job:failed        HASH
KEYS[4]  job:unsuccessful  ZSET

ARGV[1+] kinds  processed, unprocessed, ignored or failed

Returns  a number per kind, in order
Cost     O(kinds)
Repeat   safe
]]
local sizes = {
  processed = { 'HLEN', KEYS[1] },
  unprocessed = { 'SCARD', KEYS[2] },
  ignored = { 'HLEN', KEYS[3] },
  failed = { 'ZCARD', KEYS[4] },
}
local counts = {}
for i, kind in ipairs(ARGV) do
  local size = sizes[kind]
  if not size then return redis.error_reply('ERR EMQ getDependencyCounts: no kind ' .. kind) end
  counts[i] = redis.call(size[1], size[2])
end
return counts
