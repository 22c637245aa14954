--- @include "checked"

-- Whether an id is the pending iteration of a schedule: without it the schedule would produce no other.
local function is_pending(repeat_key, id)
  local scheduler, due = string.match(id, '^repeat:(.+):(%d+)$')
  return scheduler ~= nil and read('ZSCORE', repeat_key, scheduler) == due
end
