--- @include "checked"
--- @include "events"
--- @include "follow"
--- @include "meta"
--- @include "parent"
--- @include "pending"
--- @include "place"

-- Whether a parent has ended so itself. Then the edge of its child stays open: by it a later call finds what is left
-- below the child.
local function has_ended_so(parent_key)
  local p = parent_of(parent_key)
  return p ~= nil and type(redis.pcall('HGET', p.key, 'x:cancel')) == 'string'
    and type(redis.pcall('ZSCORE', p.failed, p.id)) == 'string'
end

-- Moves a job that does not run to `failed` and settles its edge; `h` is what cancel_job read.
local function end_cancelled(p, state, side, h, nonce, now)
  local meta, reason = read_meta(p), 'JobCancelled: cancelled'
  redis.call('HSET', p.key, 'failedReason', reason, 'finishedOn', now, 'x:cancel', nonce, 'err',
    '{"type":"JobCancelled","code":"cancelled","message":"cancelled"}')
  redis.call('ZADD', p.failed, now, p.id)
  if side then
    redis.call('LREM', p.prefix .. state, side, p.id)
  else
    redis.call('ZREM', p.prefix .. state, p.id)
  end
  redis.pcall('HDEL', p.key, 'defa')
  emit_trimming(p, meta, 'failed', 'jobId', p.id, 'failedReason', reason, 'prev', state)
  if h[1] and not has_ended_so(h[1]) then
    settle_edge(settle_failed, h[1], p.key, policy_of(h[2]), reason, now)
  end
  if h[3] then pcall(let_go, p, meta, p.id, h[3], now) end
end

-- Cancels one job: 1 moved to `failed`, 2 marked, since it runs; 0 it has ended or stands nowhere, -1 no such job,
-- -8 the pending iteration of a schedule. Also returns whether its children are to be cancelled too, and the cost.
local function cancel_job(p, nonce, now)
  local h = read_job('HMGET', p.key, 'parentKey', 'parent', 'deid', 'x:cancel')
  if not h or redis.call('EXISTS', p.key) == 0 then return -1, false, 0 end
  local state, cost, side = find_place(p)
  if not state or state == 'completed' then return 0, false, cost end
  if state == 'failed' then
    -- By this very call, whose reply was lost (T5); or by an earlier one that may not have come to all children.
    return h[4] == nonce and 1 or 0, h[4] ~= false, cost
  end
  if state == 'active' then
    redis.call('HSET', p.key, 'x:cancel', nonce)
    return 2, true, cost
  end
  if is_pending(p.prefix .. 'repeat', p.id) then return -8, false, cost end
  end_cancelled(p, state, side, h, nonce, now)
  return 1, true, cost
end
