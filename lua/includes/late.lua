--- @include "checked"

-- The current iterations of schedules that stand still: it was taken a second ago or more, or is gone, and no next one
-- was produced, since the consumer that took it died before. Looks at 500 due ones from this place on (T7); also returns
-- the place where the next look goes on. Reads only.
local function late_schedules(schedules, now, from)
  local due = read_job('ZRANGEBYSCORE', schedules, '-inf', now - 1000, 'WITHSCORES', 'LIMIT', from, 500) or {}
  local late = {}
  for i = 1, #due, 2 do
    local key = schedules .. ':' .. due[i]
    local slot = string.format(':%.0f', due[i + 1])
    local h = read_job('HMGET', key .. slot, 'name', 'processedOn') or {}
    local taken = whole(h[2])
    if not h[1] or (taken and now - taken >= 1000) then
      local r = read_job('HMGET', key, 'ic', 'limit', 'endDate') or {}
      local count, limit, last = whole(r[1]), whole(r[2]), whole(r[3])
      -- One that has reached its end keeps its record, and stands still for good.
      if count and not (limit and count >= limit) and not (last and now > last) then
        late[#late + 1] = 'repeat:' .. due[i] .. slot
      end
    end
  end
  return late, #due == 1000 and from + 500 or 0
end
