--- @include "checked"
--- @include "remove"

-- What is kept of the finished, {count, age s, limit}; what is no number is not set.
local function read_keep(given)
  if given ~= nil and type(given) ~= 'table' then refuse('ERR EMQ keep: a map of count and age') end
  local keep = given or {}
  return { count = whole(keep.count), age = whole(keep.age), limit = whole(keep.limit) }
end

-- Forgets finished jobs beyond an age (s) or a number, oldest first, `most` at a time (T7, T9).
-- The id leaves its set only after its keys are gone: a break in between leaves an id to trim again.
local function trim_finished(q, set, keep, now, most)
  local old = {}
  if keep.age then
    local bound = now - keep.age * 1000
    old = redis.call('ZRANGEBYSCORE', set, '-inf', bound, 'LIMIT', 0, math.min(most, keep.limit or most))
  end
  if keep.count then
    local surplus = redis.call('ZCARD', set) - keep.count
    if surplus > #old then old = redis.call('ZRANGE', set, 0, math.min(surplus, most) - 1) end
  end
  for _, id in ipairs(old) do
    remove_job(q.prefix, id, now, false, false)
    redis.call('ZREM', set, id)
  end
  return #old
end
