--- @include "ready"
--- @include "store"

-- Stores a job and puts it where its options say. Returns whether it may run now; the caller sets the marker.
-- q: wait, prioritized, delayed, pc, events.
local function enqueue(q, add, now)
  local due = add.eta or (add.delay > 0 and now + add.delay)
  if due then
    add.delay = math.max(0, due - now)
    local score = delayed_score(q, due)
    store_job(add, digits(now))
    redis.call('ZADD', q.delayed, score, add.id)
    emit(q, 'added', 'jobId', add.id, 'name', add.name)
    emit(q, 'delayed', 'jobId', add.id, 'delay', due)
    return false
  end
  store_job(add, digits(now))
  push_ready(q, add.id, add.priority, add.lifo and 'RPUSH' or 'LPUSH')
  emit(q, 'added', 'jobId', add.id, 'name', add.name)
  emit(q, 'waiting', 'jobId', add.id)
  return true
end
