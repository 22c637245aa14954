--- @include "checked"

-- The error of an add of `n` jobs that the queue has no room for (`x:maxlen`), or nil. Counted is what has not
-- started: waiting, prioritized, delayed, and parents that wait for their children.
local function full_refusal(prefix, meta, n)
  if not meta.maxlen then return nil end
  local held = read('LLEN', prefix .. 'wait') + read('LLEN', prefix .. 'paused')
  for _, state in ipairs({ 'prioritized', 'delayed', 'waiting-children' }) do
    held = held + read('ZCARD', prefix .. state)
  end
  if held + n <= meta.maxlen then return nil end
  local text = 'EMQFULL no room for %.0f more: %.0f jobs wait, and the max_length of this queue is %.0f'
  return redis.error_reply(string.format(text, n, held, meta.maxlen))
end
