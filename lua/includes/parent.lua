--- @include "checked"
--- @include "events"
--- @include "marker"
--- @include "meta"
--- @include "ready"

-- A job and its queue's keys.
local function keys_of(prefix, id)
  local key = prefix .. id
  return {
    key = key, id = id, prefix = prefix, dependencies = key .. ':dependencies', processed = key .. ':processed',
    ignored = key .. ':failed', unsuccessful = key .. ':unsuccessful', wait = prefix .. 'wait',
    prioritized = prefix .. 'prioritized', delayed = prefix .. 'delayed', pc = prefix .. 'pc',
    waiting = prefix .. 'waiting-children', failed = prefix .. 'failed', active = prefix .. 'active',
    meta = prefix .. 'meta', marker = prefix .. 'marker', events = prefix .. 'events',
  }
end

-- A parent or a child, by its full key, e.g. `emq:{q}:17`. The id is what follows the last colon, but for an iteration of
-- a schedule, `repeat:<schedule>:<ms>`.
local function parent_of(job_key)
  local prefix, id = string.match(job_key, '^(.-:)(repeat:.+:%d+)$')
  if not id then prefix, id = string.match(job_key, '^(.*:)([^:]+)$') end
  return id and keys_of(prefix, id)
end

-- Whether a child is open, after a look at all that settling its edge writes: a key of another type ends the settling
-- here, before it wrote.
local function is_open(p, child)
  if read('SISMEMBER', p.dependencies, child) == 0 then return false end
  check_ready(p)
  read_meta(p)
  for _, set in ipairs({ p.delayed, p.waiting, p.failed, p.unsuccessful }) do read('ZCARD', set) end
  for _, hash in ipairs({ p.key, p.processed, p.ignored }) do read('HLEN', hash) end
  return true
end

-- Makes a parent ready that stands in `source`: to `delayed`, `wait` (runs next) or `prioritized`, as its hash says.
local function release_parent(p, source, now)
  local h = redis.call('HMGET', p.key, 'delay', 'priority')
  local delay, priority = whole(h[1]) or 0, whole(h[2]) or 0
  if delay > 0 then
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

-- Takes a child out of the open ones. Its parent is made ready first, when this is the last one or `at_once`: a break
-- in between leaves an edge to close again, never a parent that waits for nothing.
local function close_edge(p, child, at_once, now)
  if (at_once or redis.call('SCARD', p.dependencies) == 1) and redis.call('EXISTS', p.key) == 1
    and redis.call('ZSCORE', p.waiting, p.id) then
    release_parent(p, p.waiting, now)
  end
  redis.call('SREM', p.dependencies, child)
end

-- A child that completed.
local function settle_completed(p, child, value, now)
  if not is_open(p, child) then return end
  redis.call('HSET', p.processed, child, value)
  close_edge(p, child, false, now)
end

-- A child that is no more: removed, trimmed, or failed and not kept. Returns whether it was open.
local function settle_gone(p, child, now)
  local open = is_open(p, child)
  if open then close_edge(p, child, false, now) end
  return open
end

-- A child whose failure fails its parent: by `defa`, which the parent's next consumer turns into its own failure.
local function settle_fatal(p, child, reason, now)
  redis.call('ZADD', p.unsuccessful, now, child)
  if redis.call('EXISTS', p.key) == 1 and not redis.call('ZSCORE', p.failed, p.id) then
    local text = 'child ' .. child .. ' failed: ' .. string.sub(reason, 1, 1000)
    -- Without its delay: whoever waits for the parent is told now, not when it would have run.
    redis.call('HSET', p.key, 'defa', text, 'delay', 0)
    if redis.call('ZSCORE', p.delayed, p.id) then release_parent(p, p.delayed, now) end
  end
  close_edge(p, child, true, now)
end

-- A child that failed finally, by the policy in its `parent` field (protocol §8.2). Without one the parent waits on.
local function settle_failed(p, child, policy, reason, now)
  if not (policy.fpof or policy.cpof or policy.idof or policy.rdof) or not is_open(p, child) then return end
  if policy.fpof then return settle_fatal(p, child, reason, now) end
  if policy.cpof or policy.idof then redis.call('HSET', p.ignored, child, reason) end
  close_edge(p, child, policy.cpof, now)
end

-- A child that has ended runs again: a parent that it failed, or that still waits, waits for it once more
-- (protocol §4.5). One that runs or has completed goes on without.
local function reopen_edge(p, child)
  read('SCARD', p.dependencies)
  if read('HLEN', p.key) == 0 then return end
  local fatal = read('ZSCORE', p.unsuccessful, child)
  local settled = read('HEXISTS', p.ignored, child) + read('HEXISTS', p.processed, child) > 0
  local waits = read('ZSCORE', p.waiting, p.id) or read('ZSCORE', p.failed, p.id)
  if not fatal and not (settled and waits) then return end
  redis.call('SADD', p.dependencies, child)
  redis.call('ZREM', p.unsuccessful, child)
  redis.call('HDEL', p.ignored, child)
  redis.call('HDEL', p.processed, child)
end

-- Runs one of these. In pcall: the child has ended, whatever its parent's keys hold. An edge that could not be
-- settled is noted in the child's hash, or in its parent's when the child is gone, where a repair finds it (T2).
local function settle_edge(settle, parent_key, child, ...)
  local p = parent_of(parent_key)
  if p and pcall(settle, p, child, ...) then return end
  if redis.pcall('EXISTS', child) == 1 then
    redis.pcall('HSET', child, 'x:edge', parent_key)
  elseif redis.pcall('EXISTS', parent_key) == 1 then
    redis.pcall('HSET', parent_key, 'x:edge', child)
  end
end

-- The policy in a child's `parent` field, the first that is set; garbage is no policy.
local function policy_of(parent_json)
  local decoded, given = pcall(cjson.decode, parent_json or '{}')
  for _, flag in ipairs({ 'fpof', 'cpof', 'idof', 'rdof' }) do
    if decoded and type(given) == 'table' and given[flag] == true then return { [flag] = true } end
  end
  return {}
end
