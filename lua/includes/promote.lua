--- @include "checked"
--- @include "events"
--- @include "marker"
--- @include "meta"
--- @include "ready"

-- Moves due jobs of `delayed` to where they can be taken, 200 at the most (T7). An id without a hash is dropped.
-- The caller has run check_ready.
local function promote_due(q, meta, now)
  local due = read('ZRANGEBYSCORE', q.delayed, '-inf', (now + 1) * 4096 - 1, 'LIMIT', 0, 200)
  if #due == 0 then return end
  for _, id in ipairs(due) do
    local job = q.prefix .. id
    local priority = read_job('HGET', job, 'priority')
    if not priority and (read_job('HLEN', job) or 0) == 0 then
      redis.call('ZREM', q.delayed, id)
    else
      push_ready(q, id, whole(priority) or 0, 'LPUSH')
      redis.call('ZREM', q.delayed, id)
      redis.call('HSET', job, 'delay', 0)
      emit(q, 'waiting', 'jobId', id, 'prev', 'delayed')
    end
  end
  if not is_closed(q, meta) then ring(q) end
end
