#!lua flags=no-writes
--[[ getStrays-1: a page of the queue's keys, without the jobs that stand in a sorted set and what hangs on a job.

KEYS[1]  prefix  of the queue's keys

ARGV[1]  cursor  0 at first, then the cursor of the last reply
ARGV[2]  count   keys to look at, about; at most 1000

Returns  {cursor, {{name without the prefix, type} ...}}; a cursor of zero: all were seen
Cost     O(count)
Repeat   safe
]]
--- @include "facts"

local prefix, count = KEYS[1], whole(ARGV[2])
if not count or count > 1000 then refuse('ERR EMQ getStrays: at most 1000 keys a call') end
local pattern = string.gsub(prefix, '[%*%?%[%]\\]', '\\%0') .. '*'
local page = redis.call('SCAN', ARGV[1], 'MATCH', pattern, 'COUNT', count)
local hangs = {}
for _, name in ipairs(hanging_names()) do hangs[name] = name ~= 'lock' end

local function is_placed(id)
  for _, name in ipairs(set_names()) do
    if look(false, 'ZSCORE', prefix .. name, id) then return true end
  end
  return false
end

local found = {}
for _, key in ipairs(page[2]) do
  local name, kind = string.sub(key, #prefix + 1), type_of(key)
  local owner, what = string.match(name, '^(.+):([^:]+)$')
  local known = owner and hangs[what] and type_of(prefix .. owner) == 'hash'
  if not known and not (kind == 'hash' and is_placed(name)) then found[#found + 1] = { name, kind } end
end
return { page[1], found }
