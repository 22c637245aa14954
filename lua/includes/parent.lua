--- @include "checked"
--- @include "events"
--- @include "marker"
--- @include "meta"
--- @include "ready"

-- A parent and its queue's keys, from its full key, e.g. `emq:{q}:17`. The id is what follows the last colon.
local function parent_of(parent_key)
  local prefix, id = string.match(parent_key, '^(.*:)([^:]+)$')
  if not id then return nil end
  return {
    key = parent_key, id = id, prefix = prefix, dependencies = parent_key .. ':dependencies',
    processed = parent_key .. ':processed', ignored = parent_key .. ':failed',
    unsuccessful = parent_key .. ':unsuccessful', wait = prefix .. 'wait', prioritized = prefix .. 'prioritized',
    delayed = prefix .. 'delayed', pc = prefix .. 'pc', waiting = prefix .. 'waiting-children',
    failed = prefix .. 'failed', active = prefix .. 'active', meta = prefix .. 'meta', marker = prefix .. 'marker',
    events = prefix .. 'events',
  }
end

-- Makes a parent ready that stands in `source`: to `delayed`, `wait` (runs next) or `prioritized`, as its hash says.
local function release_parent(p, source, now)
  local h = redis.call('HMGET', p.key, 'delay', 'priority')
  local delay, priority = whole(h[1]) or 0, whole(h[2]) or 0
  check_ready(p)
  read('ZCARD', p.delayed)
  if delay > 0 and source ~= p.delayed then
    redis.call('ZADD', p.delayed, (now + delay) * 4096, p.id)
    redis.call('ZREM', source, p.id)
    emit(p, 'delayed', 'jobId', p.id, 'delay', now + delay)
    ring_delay(p)
  else
    push_ready(p, p.id, priority, 'RPUSH')
    redis.call('ZREM', source, p.id)
    if not is_closed(p, read_meta(p)) then ring(p) end
  end
  emit(p, 'waiting', 'jobId', p.id, 'prev', 'waiting-children')
end

-- Makes a parent ready when no child is open any more.
local function release_if_done(p, now)
  if redis.call('SCARD', p.dependencies) > 0 or redis.call('EXISTS', p.key) == 0 then return end
  if redis.call('ZSCORE', p.waiting, p.id) then release_parent(p, p.waiting, now) end
end

-- A child that completed.
local function settle_completed(p, child, value, now)
  if redis.call('SISMEMBER', p.dependencies, child) == 0 then return end
  redis.call('HSET', p.processed, child, value)
  redis.call('SREM', p.dependencies, child)
  release_if_done(p, now)
end

-- A child that is no more: removed, trimmed, or failed and not kept.
local function settle_gone(p, child, now)
  if redis.call('SREM', p.dependencies, child) == 1 then release_if_done(p, now) end
end

-- A child whose failure fails its parent: by `defa`, which the parent's next consumer turns into its own failure.
local function settle_fatal(p, child, reason, now)
  redis.call('ZADD', p.unsuccessful, now, child)
  redis.call('SREM', p.dependencies, child)
  if redis.call('EXISTS', p.key) == 0 or redis.call('ZSCORE', p.failed, p.id) then return end
  redis.call('HSET', p.key, 'defa', 'child ' .. child .. ' failed: ' .. string.sub(reason, 1, 1000))
  if redis.call('ZSCORE', p.waiting, p.id) then
    release_parent(p, p.waiting, now)
  elseif redis.call('ZSCORE', p.delayed, p.id) then
    redis.call('HSET', p.key, 'delay', 0)
    release_parent(p, p.delayed, now)
  end
end

-- A child that failed finally, by the policy in its `parent` field (protocol §8.2). Without one the parent waits on.
local function settle_failed(p, child, policy, reason, now)
  if not (policy.fpof or policy.cpof or policy.idof or policy.rdof) then return end
  if redis.call('SISMEMBER', p.dependencies, child) == 0 then return end
  if policy.fpof then return settle_fatal(p, child, reason, now) end
  if not policy.rdof then redis.call('HSET', p.ignored, child, reason) end
  redis.call('SREM', p.dependencies, child)
  if policy.cpof and redis.call('ZSCORE', p.waiting, p.id) then
    release_parent(p, p.waiting, now)
  else
    release_if_done(p, now)
  end
end

-- Runs one of these. In pcall: the child has ended, whatever its parent's keys hold. An edge that could not be
-- settled is noted in the child's hash, where a repair finds it (T2).
local function settle_edge(settle, parent_key, child, ...)
  local p = parent_of(parent_key)
  if p and pcall(settle, p, child, ...) then return end
  if redis.call('EXISTS', child) == 1 then redis.pcall('HSET', child, 'x:edge', parent_key) end
end

-- The policy in a child's `parent` field; garbage is no policy.
local function policy_of(parent_json)
  local decoded, policy = pcall(cjson.decode, parent_json or '{}')
  return decoded and type(policy) == 'table' and policy or {}
end
