--- @include "parent"

-- Failed children that are no more: they cannot be retried, and must not stand in a job's way for ever. Reads only.
local function lost_children(job)
  local lost = {}
  for _, key in ipairs(read('ZRANGE', job .. ':unsuccessful', 0, 999)) do
    if (read_job('HLEN', key) or 0) == 0 then lost[#lost + 1] = key end
  end
  return lost
end

-- Children that were cancelled with a job and are still so, whose edges are open: it would wait for them in vain.
-- Reads only.
local function cancelled_children(job)
  local found = {}
  for _, key in ipairs(read('SMEMBERS', job .. ':dependencies')) do
    local child = parent_of(key)
    if child and read('ZSCORE', child.failed, child.id) then
      local told = read_job('HMGET', key, 'parent', 'failedReason') or {}
      found[#found + 1] = { key = key, policy = policy_of(told[1]), reason = told[2] or '' }
    end
  end
  return found
end

-- Settles their edges, by their policies.
local function settle_cancelled(job, children, now)
  for _, child in ipairs(children) do settle_edge(settle_failed, job, child.key, child.policy, child.reason, now) end
end
