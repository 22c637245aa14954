--- @include "checked"

-- The script's one reading of time, ms: TIME may advance between two calls (T1).
local function read_clock(given)
  if given ~= '' then return whole(given) or refuse('ERR EMQ ts: ms since the epoch, or empty') end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
