--- @include "checked"
--- @include "lock"
--- @include "parent"

-- What an add says of its parent, checked. `within`: what the parent must be for that: {an: it came with this child};
-- {token, ats: of the run that adds the child}.
local function check_child(key, dependencies, map, within)
  if not key then return end
  if type(key) ~= 'string' or not parent_of(key) or dependencies ~= key .. ':dependencies' or type(map) ~= 'table' then
    refuse('ERR EMQ a child: the key of its parent, the key of its dependencies, and a map')
  end
  if within and (type(within) ~= 'table' or type(within.an or within.ats) ~= 'string') then
    refuse('ERR EMQ within: a map of an, or of token and ats')
  end
end

-- Why a child may not hang under its parent, or nil: -5 there is none, or another one than came with the child; -2, -6
-- the run that adds it has lost its job (T6).
local function parent_refusal(add)
  if read('HLEN', add.parent_key) == 0 then return -5 end
  read('SCARD', add.dependencies)
  if not add.within then return nil end
  local h = read_job('HMGET', add.parent_key, 'an', 'ats') or {}
  if add.within.an then return h[1] ~= add.within.an and -5 or nil end
  local code = lock_refusal(add.parent_key, add.within.token, add.within.ats, h[2])
  return code ~= 0 and code or nil
end

-- Whether a job is the parent of this one, or above it.
local function is_above(job, below)
  for _ = 1, 1000 do
    if below == job then return true end
    below = read_job('HGET', below, 'parentKey')
    if not below then return false end
  end
  return true
end

-- Why an existing job may not be added once more: -7 it has another living parent; or nil. Notes the parent that it
-- has, for a new run of it, and how it has ended, for `attach`. Reads only.
local function child_refusal(add, job)
  local old = read_job('HMGET', job, 'parentKey', 'parent', 'returnvalue', 'result', 'failedReason') or {}
  local living = old[1] and redis.call('EXISTS', old[1]) == 1
  if not add.parent_key then
    if living then add.old_parent_key, add.old_parent_json = old[1], old[2] end
    return nil
  end
  if living and old[1] ~= add.parent_key then return -7 end
  if is_above(job, add.parent_key) then refuse('ERR EMQ ' .. job .. ' cannot be a child of what waits for it') end
  if read('ZSCORE', add.prefix .. 'completed', add.id) then
    add.completed = old[3] or old[4] or 'null'
  elseif read('ZSCORE', add.prefix .. 'failed', add.id) then
    add.failed = old[5] or ''
  end
  return nil
end

-- Whether a job that is no more has ended as a child of this parent: the repeated run of a parent adds its children
-- again, and those that retention has taken meanwhile must not run again. Reads only.
local function has_settled(add)
  local p, child = add.parent_key and not add.rerun and parent_of(add.parent_key), add.prefix .. add.id
  if not p then return false end
  return read('HEXISTS', p.processed, child) == 1 or read('HEXISTS', p.ignored, child) == 1
    or read('ZSCORE', p.unsuccessful, child) and true
end

-- Hangs an existing job under a parent: one that has ended settles its edge at once, any other is waited for.
local function attach(add, now)
  local job = add.prefix .. add.id
  redis.call('HSET', job, 'parentKey', add.parent_key, 'parent', add.parent_json)
  redis.call('SADD', add.dependencies, job)
  if add.completed then
    settle_edge(settle_completed, add.parent_key, job, add.completed, now)
  elseif add.failed then
    settle_edge(settle_failed, add.parent_key, job, policy_of(add.parent_json), add.failed, now)
  end
end
