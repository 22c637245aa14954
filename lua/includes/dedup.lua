--- @include "checked"
--- @include "events"
--- @include "remove"

-- What deduplication makes of an add (protocol §10). Reads only. Returns nil when nobody owns the id; else
-- {owner, stays: 'drop', 'hold' (kept back until the owner has ended) or 'silent'}, or {owner, replaced: true}.
local function dedup_verdict(add)
  local owner = read('GET', add.dedup_key)
  if not owner then return nil end
  -- Without an expiry the key is worth as much as its owner: one that is gone owns nothing.
  if redis.call('PTTL', add.dedup_key) == -1 and redis.call('EXISTS', add.prefix .. owner) == 0 then return nil end
  local is_delayed = read('ZSCORE', add.prefix .. 'delayed', owner)
  if add.dedup.keepLastIfActive and read('LPOS', add.prefix .. 'active', owner) then
    read('HLEN', add.prefix .. 'dn:' .. add.dedup.id)
    return { owner = owner, stays = 'hold' }
  end
  if not add.dedup.replace then return { owner = owner, stays = 'drop' } end
  return { owner = owner, stays = not is_delayed and 'silent' or nil, replaced = is_delayed and true }
end

-- Keeps the newcomer back: of those that come while the owner runs only the last one follows it.
local function hold_newcomer(add)
  local held = add.prefix .. 'dn:' .. add.dedup.id
  redis.call('DEL', held)
  redis.call('HSET', held, 'name', add.name, add.field, add.payload, 'opts', add.opts_json)
  if add.id ~= '' then redis.call('HSET', held, 'jid', add.id) end
  redis.call('PERSIST', add.dedup_key)
end

-- Ends an add whose newcomer does not become a job. Returns the reply.
local function answer_duplicate(q, meta, add, verdict)
  local ttl = whole(add.dedup.ttl)
  if verdict.stays == 'hold' then
    hold_newcomer(add)
  elseif verdict.stays == 'drop' and add.dedup.extend and ttl then
    redis.call('PEXPIRE', add.dedup_key, ttl)
  end
  redis.pcall('INCR', q.id)
  if verdict.stays ~= 'silent' then
    emit_trimming(q, meta, 'deduplicated', 'jobId', verdict.owner, 'deduplicationId', add.dedup.id,
      'deduplicatedJobId', add.id)
  end
  return { verdict.owner, 3 }
end

-- Makes the new job, which stands in its key already, the owner of its deduplication id.
local function claim_dedup(q, meta, add, verdict, now)
  local ttl, key = whole(add.dedup.ttl), add.dedup_key
  if verdict and verdict.replaced and ttl and not add.dedup.extend then
    redis.call('SET', key, add.id, 'KEEPTTL')
  elseif ttl and not add.dedup.keepLastIfActive then
    redis.call('SET', key, add.id, 'PX', ttl)
  else
    redis.call('SET', key, add.id)
  end
  if not (verdict and verdict.replaced) then return end
  remove_job(add.prefix, verdict.owner, now, false, false)
  redis.call('ZREM', add.prefix .. 'delayed', verdict.owner)
  redis.call('DEL', add.prefix .. 'dn:' .. add.dedup.id)
  emit(q, 'removed', 'jobId', verdict.owner, 'prev', 'delayed')
  emit_trimming(q, meta, 'deduplicated', 'jobId', add.id, 'deduplicationId', add.dedup.id, 'deduplicatedJobId',
    verdict.owner)
end
