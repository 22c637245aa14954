--- @include "checked"
--- @include "events"
--- @include "marker"
--- @include "meta"
--- @include "ready"

-- Takes ids out of `delayed` into `wait`, those without a job into nothing.
local function move_due(q, ready, orphans)
  if #ready > 0 then
    redis.call('LPUSH', q.wait, unpack(ready))
    redis.call('ZREM', q.delayed, unpack(ready))
  end
  if #orphans > 0 then redis.call('ZREM', q.delayed, unpack(orphans)) end
end

-- Moves due jobs of `delayed` to where they can be taken, 100 at the most, which takes about 1 ms (T7). An id without a
-- hash is dropped. The caller has run check_ready.
local function promote_due(q, meta, now)
  local due = read('ZRANGEBYSCORE', q.delayed, '-inf', digits((now + 1) * 4096 - 1), 'LIMIT', 0, 100)
  if #due == 0 then return end
  local ready, orphans, moved, ranks = {}, {}, {}, {}
  for _, id in ipairs(due) do
    local job = q.prefix .. id
    local priority = read_job('HGET', job, 'priority')
    if not priority and (read_job('HLEN', job) or 0) == 0 then
      orphans[#orphans + 1] = id
    else
      moved[#moved + 1], ranks[id] = id, whole(priority) or 0
      if ranks[id] == 0 then ready[#ready + 1] = id end
    end
  end
  move_due(q, ready, orphans)
  for _, id in ipairs(moved) do
    if ranks[id] > 0 then
      push_ready(q, id, ranks[id], 'LPUSH')
      redis.call('ZREM', q.delayed, id)
    end
  end
  for _, id in ipairs(moved) do
    redis.call('HSET', q.prefix .. id, 'delay', '0')
    emit(q, 'waiting', 'jobId', id, 'prev', 'delayed')
  end
  if not is_closed(q, meta) then ring(q) end
end
