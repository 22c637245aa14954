#!lua flags=no-writes
--[[ getJobs-1: a page of each of some states, with the jobs' hashes.

KEYS[1]  prefix  of the queue's keys

ARGV[1]  start   0-based
ARGV[2]  end     inclusive; at most 1000 after start
ARGV[3]  asc     1: oldest first
ARGV[4]  rounds  how often ids without a hash are replaced by the next ones
ARGV[5+] states  names of state keys

Returns  per state a list of {id, fields}
Cost     O(end - start); a page deep inside a list costs O(start)
Repeat   safe
]]
local prefix, first, last, asc, rounds = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])
if last - first >= 1000 then return redis.error_reply('ERR EMQ getJobs: at most 1000 jobs a page') end

local function ids_of(state, from, to)
  local key = prefix .. state
  if state ~= 'wait' and state ~= 'paused' and state ~= 'active' then
    return redis.call(asc and 'ZRANGE' or 'ZREVRANGE', key, from, to)
  end
  if not asc then return redis.call('LRANGE', key, from, to) end
  local ids, oldest_first = redis.call('LRANGE', key, -(to + 1), -(from + 1)), {}
  for i = #ids, 1, -1 do oldest_first[#oldest_first + 1] = ids[i] end
  return oldest_first
end

local pages = {}
for i = 5, #ARGV do
  local page, from, missing = {}, first, last - first + 1
  for _ = 1, rounds do
    local ids = ids_of(ARGV[i], from, from + missing - 1)
    for _, id in ipairs(ids) do
      local fields = redis.call('HGETALL', prefix .. id)
      if #fields > 0 then page[#page + 1] = { id, fields } end
    end
    from = from + missing
    missing = last - first + 1 - #page
    if missing == 0 or #ids == 0 then break end
  end
  pages[#pages + 1] = page
end
return pages
