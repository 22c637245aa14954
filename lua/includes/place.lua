--- @include "checked"

-- The side from which LREM finds an id in a list, 1 or -1; nil: it is not there. Reads only; looks at each entry once.
local function find_in_list(key, id)
  local half = math.ceil(read('LLEN', key) / 2)
  if redis.call('LPOS', key, id, 'RANK', -1, 'MAXLEN', half) then return -1 end
  if redis.call('LPOS', key, id, 'MAXLEN', half) then return 1 end
  return nil
end

-- Where a job's id stands, how many list entries that took, and in a list the side of find_in_list. Reads only.
local function find_place(p)
  for _, state in ipairs({ 'completed', 'failed', 'delayed', 'prioritized', 'waiting-children' }) do
    if read('ZSCORE', p.prefix .. state, p.id) then return state, 0 end
  end
  if read('LPOS', p.active, p.id) then return 'active', 0 end
  local cost = 0
  for _, state in ipairs({ 'wait', 'paused' }) do
    local side = find_in_list(p.prefix .. state, p.id)
    cost = cost + redis.call('LLEN', p.prefix .. state)
    if side then return state, cost, side end
  end
  return nil, cost
end
