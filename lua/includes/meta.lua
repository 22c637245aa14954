--- @include "checked"

-- All that a transition asks of `meta`, in one read. Garbage counts as "not set".
-- Also holds the prefix against the declared keys: with another one every id would look like an orphan.
local function read_meta(q)
  if q.prefix and q.meta ~= q.prefix .. 'meta' then refuse('ERR EMQ the prefix is not that of the keys') end
  local m = read('HMGET', q.meta, 'paused', 'concurrency', 'max', 'duration', 'opts.maxLenEvents', 'x:maxlen')
  return {
    paused = m[1] and true or false,
    concurrency = whole(m[2]),
    max = whole(m[3]),
    duration = whole(m[4]),
    cap = whole(m[5]),
    maxlen = whole(m[6]),
  }
end

-- Whether nothing may start: paused, or at the queue's concurrency.
local function is_closed(q, meta)
  if meta.paused then return true end
  return meta.concurrency ~= nil and (read_job('LLEN', q.active) or 0) >= meta.concurrency
end
