--- @include "checked"
--- @include "limits"
--- @include "meta"
--- @include "promote"
--- @include "take"

-- Refuses a fetch that could stop half-way, before its first write: arguments, and each key that it writes.
local function check_fetch(q, meta, opts)
  local limiter, lock_ms = opts.limiter, opts.lockDuration
  if type(opts.token) ~= 'string' or (opts.token ~= '0' and not (whole(lock_ms) and whole(lock_ms) > 0)) then
    refuse('ERR EMQ a fetch needs a token and a lockDuration in ms')
  end
  if (opts.count and not whole(opts.count)) or (opts.name and type(opts.name) ~= 'string') then
    refuse('ERR EMQ a fetch has a number as its count, and a text as its name')
  end
  if limiter and type(limiter) ~= 'table' then refuse('ERR EMQ limiter: a map of max and duration') end
  if (meta.max or (limiter and whole(limiter.max))) and not rate_window(meta, limiter) then
    refuse('ERR EMQ a rate limit needs both max and duration; set them together')
  end
  check_ready(q)
  read('LLEN', q.active)
end

-- Promotes what is due, then takes up to opts.count jobs under one token, into `jobs`; ids without one into `dropped`.
-- Returns {jobs, rate limit ms, due ms of the next delayed job, ids dropped}, and whether the queue is closed.
local function fetch(q, meta, now, opts, jobs, dropped)
  check_fetch(q, meta, opts)
  promote_due(q, meta, now)
  local wait_ms, room, max = rate_room(q, meta, opts.limiter)
  if wait_ms > 0 then return { jobs, wait_ms, 0, dropped }, false end
  if is_closed(q, meta) then return { jobs, 0, 0, dropped }, true end
  local want = math.min(opts.count or 1, room)
  if meta.concurrency then want = math.min(want, meta.concurrency - redis.call('LLEN', q.active)) end
  local empty = false
  while #jobs < want and #dropped < 100 do
    local ids, source = peek(q, math.min(want - #jobs, 100 - #dropped))
    if #ids == 0 then
      empty = true
      break
    end
    local before = #jobs
    take(q, ids, source, now, opts, jobs, dropped)
    if max then count_starts(q, meta, opts.limiter, #jobs - before) end
  end
  -- Waking one sleeper is enough: its own fetch rings again until one finds nothing (protocol §3.3).
  if (#jobs > 0 and #jobs == want) or #dropped >= 100 then ring(q) end
  if not empty or #jobs == want then return { jobs, 0, 0, dropped }, false end
  if #jobs == 0 then redis.call('DEL', q.pc) end
  local next_due = redis.call('ZRANGE', q.delayed, 0, 0, 'WITHSCORES')
  return { jobs, 0, next_due[2] and math.floor(next_due[2] / 4096) or 0, dropped }, false
end

-- `fetch` whose reply names the jobs that were taken, whatever stopped it then. The third value is the error's text.
local function fetch_safely(q, meta, now, opts)
  local jobs, dropped = {}, {}
  local fetched, reply, closed = pcall(fetch, q, meta, now, opts, jobs, dropped)
  if fetched then return reply, closed, nil end
  return { jobs, 0, 0, dropped }, false, type(reply) == 'table' and reply.err or reply
end

-- The fetch of a script that has ended a run: one that cannot be done must not hide that (T2).
local function fetch_next(q, meta, now, opts)
  opts.token = opts.next
  return fetch_safely(q, meta, now, opts)
end
