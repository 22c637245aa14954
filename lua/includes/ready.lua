--- @include "checked"
--- @include "scores"

-- Puts an id where it can be taken. `side` (LPUSH: runs last, RPUSH: runs next) counts for priority 0 only.
local function push_ready(q, id, priority, side)
  if priority > 0 then
    redis.call('ZADD', q.prioritized, priority_score(q, priority), id)
  else
    redis.call(side, q.wait, id)
  end
end

-- Reads the types of the keys that push_ready writes: a wrong one stops the script before it wrote.
local function check_ready(q)
  read('LLEN', q.wait)
  read('ZCARD', q.prioritized)
end
