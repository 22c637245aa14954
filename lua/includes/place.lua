--- @include "checked"

-- Where a job's id stands, and how many list entries it took to find out. Reads only.
local function find_place(p)
  for _, state in ipairs({ 'completed', 'failed', 'delayed', 'prioritized', 'waiting-children' }) do
    if read('ZSCORE', p.prefix .. state, p.id) then return state, 0 end
  end
  if read('LPOS', p.active, p.id) then return 'active', 0 end
  for _, state in ipairs({ 'wait', 'paused' }) do
    if read('LPOS', p.prefix .. state, p.id, 'RANK', -1) then return state, redis.call('LLEN', p.prefix .. state) end
  end
  return nil, redis.call('LLEN', p.wait)
end
