--- @include "checked"
--- @include "drop"
--- @include "events"
--- @include "follow"
--- @include "lock"
--- @include "metrics"
--- @include "parent"

-- Whether a job may end as `set` now: 0, or why not; 1: this very run has ended it before (its reply was lost, T5).
-- Returns the code and the fields of leave_refusal.
local function finish_refusal(q, run, set)
  local job = q.prefix .. run.id
  local code, h = leave_refusal(q, job, run.id, run.token, run.ats)
  if code == 0 then
    if not run.failed and redis.call('EXISTS', job .. ':dependencies', job .. ':unsuccessful') > 0 then
      code = redis.call('EXISTS', job .. ':dependencies') == 1 and -4 or -9
    end
  elseif run.ats ~= '' and h[1] == run.ats and read('ZSCORE', set, run.id) then
    code = 1
  end
  return code, h
end

-- The events of an end. A job that is not kept carries a small msgpack result along (protocol §16 X1).
local function emit_finish(q, run, atm)
  if run.failed then
    emit(q, 'failed', 'jobId', run.id, 'failedReason', run.value, 'prev', 'active')
    if atm >= (tonumber(run.attempts) or 0) then
      emit(q, 'retries-exhausted', 'jobId', run.id, 'attemptsMade', atm)
    end
  elseif run.field == 'returnvalue' then
    emit(q, 'completed', 'jobId', run.id, 'returnvalue', run.value, 'prev', 'active')
  elseif run.drop and #run.value <= 4096 then
    emit(q, 'completed', 'jobId', run.id, 'returnvalue', 'null', 'prev', 'active', 'rv', run.value)
  else
    emit(q, 'completed', 'jobId', run.id, 'returnvalue', 'null', 'prev', 'active')
  end
end

-- Tells the parent. A child that is not kept and has no policy is gone, which settles its edge too.
local function settle_finish(job, run, h, now)
  if not run.failed then
    settle_edge(settle_completed, h[5], job, run.value, now)
    return
  end
  settle_edge(settle_failed, h[5], job, policy_of(h[6]), run.value, now)
  if run.drop then settle_edge(settle_gone, h[5], job, now) end
end

-- Writes what an end leaves behind, while the id is still in `active`. Of a job that is not kept all keys go: a break
-- after that leaves an id in `active` without a hash, which the stalled pass drops.
local function store_end(q, run, h, now_text)
  local job, atm = q.prefix .. run.id, digits((whole(h[2]) or 0) + 1)
  if run.drop then
    drop_job(job)
  else
    redis.call('HSET', job, run.field, run.value, 'finishedOn', now_text, 'atm', atm, unpack(run.fields))
  end
end

-- What follows an end, when the id has left `active`. The job has ended, whatever stands in the keys of others.
local function tell_end(q, meta, run, h, now)
  local job = q.prefix .. run.id
  if run.failed and h[3] and not run.drop then redis.call('HDEL', job, 'defa') end
  emit_finish(q, run, (whole(h[2]) or 0) + 1)
  if h[5] then settle_finish(job, run, h, now) end
  if h[7] then pcall(let_go, q, meta, run.id, h[7], now) end
end

-- Ends one job that finish_refusal answered with 0; `h` is what it read.
-- run: id, token, ats, field, value, failed, drop, attempts, fields (flat list), follow (jobs to publish with it).
local function finish(q, meta, run, h, set, now)
  if run.follow then publish(q, meta, run.follow, now) end
  local now_text = digits(now)
  store_end(q, run, h, now_text)
  if not run.drop then redis.call('ZADD', set, now_text, run.id) end
  redis.call('LREM', q.active, -1, run.id)
  unlock(q, q.prefix .. run.id, run.id, run.token)
  tell_end(q, meta, run, h, now)
end

-- Said once when the last job of a queue has ended. In pcall: the jobs have ended, whatever stands in these keys.
local function emit_drained(q)
  if redis.pcall('LLEN', q.wait) == 0 and redis.pcall('LLEN', q.active) == 0
    and redis.pcall('ZCARD', q.prioritized) == 0 then
    emit(q, 'drained')
  end
end
