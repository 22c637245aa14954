--- @include "drop"
--- @include "parent"

-- Gives up a deduplication id that this job owns, and the job held back for it.
local function release_dedup(prefix, id, dedup_id)
  if not dedup_id then return end
  if read_job('GET', prefix .. 'de:' .. dedup_id) == id then
    redis.call('DEL', prefix .. 'de:' .. dedup_id, prefix .. 'dn:' .. dedup_id)
  end
end

-- Whether a parent waits for nothing but this child.
local function waits_for_this_only(p, child)
  return redis.pcall('SISMEMBER', p.dependencies, child) == 1 and redis.pcall('SCARD', p.dependencies) == 1
    and type(redis.pcall('ZSCORE', p.waiting, p.id)) == 'string'
end

-- Deletes a job that stands in no key any more, or is about to leave it, and settles its edge. `hard`: a waiting
-- parent of the same queue that has no other child goes with it, and so on up, a thousand in all (drain, clean,
-- obliterate). `dedup`: its deduplication id is free again. `take_out`: takes its id out of the key where it stands,
-- right after its own keys are gone; without it the caller does.
local function remove_job(prefix, id, now, hard, dedup, take_out)
  local job, most = prefix .. id, 1000
  for step = 1, most do
    local h = read_job('HMGET', job, 'parentKey', 'deid') or {}
    if dedup then release_dedup(prefix, string.sub(job, #prefix + 1), h[2]) end
    drop_job(job)
    if step > 1 then
      redis.call('ZREM', prefix .. 'waiting-children', string.sub(job, #prefix + 1))
    elseif take_out then
      take_out(id)
    end
    local p = h[1] and parent_of(h[1])
    if not p then return end
    if not hard or step == most or p.prefix ~= prefix or not waits_for_this_only(p, job) then
      return settle_edge(settle_gone, h[1], job, now)
    end
    job = p.key
  end
end
