--- @include "drop"
--- @include "parent"

-- Gives up a deduplication id that this job owns, and the job held back for it.
local function release_dedup(prefix, id, dedup_id)
  if not dedup_id then return end
  if read_job('GET', prefix .. 'de:' .. dedup_id) == id then
    redis.call('DEL', prefix .. 'de:' .. dedup_id, prefix .. 'dn:' .. dedup_id)
  end
end

-- Deletes a job that stands in no key any more, or is about to leave it, and settles its edge. `hard`: a waiting
-- parent of the same queue that has no other child goes with it, and so on up (drain, clean, obliterate).
-- `dedup`: its deduplication id is free again.
local function remove_job(prefix, id, now, hard, dedup)
  local job = prefix .. id
  for _ = 1, 1000 do
    local h = read_job('HMGET', job, 'parentKey', 'deid') or {}
    drop_job(job)
    if dedup then release_dedup(prefix, string.sub(job, #prefix + 1), h[2]) end
    local p = h[1] and parent_of(h[1])
    if not p then return end
    if not hard or p.prefix ~= prefix then return settle_edge(settle_gone, h[1], job, now) end
    local left = redis.pcall('SREM', p.dependencies, job) == 1 and redis.pcall('SCARD', p.dependencies)
    if left ~= 0 or redis.pcall('ZREM', p.waiting, p.id) ~= 1 then return end
    job = p.key
  end
end
