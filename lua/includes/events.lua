-- Events come after the move and in pcall: a stream that cannot be written must not tear a job (T2).
local function emit(q, ...)
  redis.pcall('XADD', q.events, '*', 'event', ...)
end

-- The queue's cap for `events`; stored once, so that other clients use the same.
local function event_cap(q, meta)
  if not meta.cap then
    meta.cap = 10000
    redis.pcall('HSET', q.meta, 'opts.maxLenEvents', meta.cap)
  end
  return meta.cap
end

local function emit_trimming(q, meta, ...)
  redis.pcall('XADD', q.events, 'MAXLEN', '~', event_cap(q, meta), '*', 'event', ...)
end

-- Trims before a call's events, so that a reader sees them together.
local function trim_events(q, meta)
  redis.pcall('XTRIM', q.events, 'MAXLEN', '~', event_cap(q, meta))
end
