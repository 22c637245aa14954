--- @include "checked"

-- 0 when the run may write, -2 no lock, -6 the lock of another run (T6). `started` is the hash's `ats`.
local function lock_refusal(job, token, ats, started)
  if token ~= '0' then
    local held = read_job('GET', job .. ':lock')
    if not held then return -2 end
    if held ~= token then return -6 end
  end
  if ats ~= '' and started ~= ats then return -6 end
  return 0
end

-- Whether a run may take its job out of `active`: 0, or -1 no hash, -2, -6, -3 not in `active`.
-- Reads only. Returns the code and the fields {ats, atm, defa, priority, parentKey, parent, deid, x:cancel}.
local function leave_refusal(q, job, id, token, ats)
  local h = read_job('HMGET', job, 'ats', 'atm', 'defa', 'priority', 'parentKey', 'parent', 'deid',
    'x:cancel')
  if not h or (not h[1] and redis.call('EXISTS', job) == 0) then return -1, h or {} end
  local code = lock_refusal(job, token, ats, h[1])
  if code == 0 and not read('LPOS', q.active, id, 'RANK', -1) then code = -3 end
  return code, h
end

-- A left-over of `stalled` is harmless, so its removal may fail.
local function unlock(q, job, id, token)
  if token ~= '0' then redis.call('DEL', job .. ':lock') end
  redis.pcall('SREM', q.stalled, id)
end
