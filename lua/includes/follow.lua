--- @include "checked"
--- @include "enqueue"
--- @include "marker"
--- @include "meta"

-- One job that a finishing run brings along; what is wrong with it raises.
local function read_follower(q, given)
  local opts, parent = given[4], given[6]
  for _, i in ipairs({ 1, 2, 3, 5 }) do
    if type(given[i]) ~= 'string' then refuse('ERR EMQ follow: id, name, payload and field are texts') end
  end
  if given[1] == '' or type(opts) ~= 'table' then refuse('ERR EMQ follow: an id, and a map of options') end
  check_child(parent, parent and parent .. ':dependencies', given[7])
  return {
    prefix = q.prefix, id = given[1], name = given[2], payload = given[3], field = given[5], nonce = '',
    opts_json = encode_opts(opts), delay = whole(opts.delay) or 0, priority = whole(opts.priority) or 0,
    lifo = opts.lifo, eta = false, parent_key = parent or nil, dependencies = parent and parent .. ':dependencies',
    parent_json = parent and cjson.encode(given[7]), waits = given[8] == true,
  }
end

-- Adds that a finishing run brings along: msgpack [[id, name, payload, options, field, parent key or nil, parent map,
-- whether it waits for children] ...], parents first. Bad ones, and keys of a wrong type, raise here, before the first
-- write.
local function read_follow(q, packed)
  local given = cmsgpack.unpack(packed)
  if type(given) ~= 'table' or #given > 500 then refuse('ERR EMQ follow: a list of at most 500 jobs') end
  check_ready(q)
  read('ZCARD', q.delayed)
  read('ZCARD', q.prefix .. 'waiting-children')
  local follow = {}
  for i, item in ipairs(given) do
    if type(item) ~= 'table' then refuse('ERR EMQ follow: [id, name, payload, options, field]') end
    follow[i] = read_follower(q, item)
    if follow[i].dependencies then read('SCARD', follow[i].dependencies) end
  end
  return follow
end

-- Publishes one of them. Returns whether it may run now. A child whose parent is gone is not wanted any more.
local function publish_one(q, add, now)
  local job = add.prefix .. add.id
  if redis.call('EXISTS', job) == 1 or (add.parent_key and redis.call('EXISTS', add.parent_key) == 0) then
    return false
  end
  local ready = false
  if add.waits then
    store_job(add, digits(now))
    redis.call('ZADD', add.prefix .. 'waiting-children', now, add.id)
    emit(q, 'added', 'jobId', add.id, 'name', add.name)
    emit(q, 'waiting-children', 'jobId', add.id)
  else
    ready = enqueue(q, add, now)
  end
  -- Before the run's own edge is settled, so that a parent with new children is not released by it.
  if add.dependencies then redis.call('SADD', add.dependencies, job) end
  return ready
end

-- Publishes them, before the run that brings them leaves `active`: a break in between doubles, never loses (T2).
local function publish(q, meta, follow, now)
  local ready = false
  for _, add in ipairs(follow) do ready = publish_one(q, add, now) or ready end
  if #follow == 0 then return end
  redis.pcall('INCRBY', q.prefix .. 'id', #follow)
  if ready and not is_closed(q, meta) then ring(q) end
  ring_delay(q)
end

-- The job that was held back for the owner of a deduplication id, or nil. Reads only.
local function read_held(q, held, dedup_id)
  local flat = read('HGETALL', held)
  if #flat == 0 then return nil end
  local h = {}
  for i = 1, #flat, 2 do h[flat[i]] = flat[i + 1] end
  local opts = cjson.decode(h.opts or '{}')
  local field = h.args and 'args' or 'data'
  check_ready(q)
  read('ZCARD', q.delayed)
  return {
    prefix = q.prefix, id = h.jid, name = h.name or '', payload = h[field] or '', field = field, nonce = '',
    opts_json = h.opts or '{}', delay = whole(opts.delay) or 0, priority = whole(opts.priority) or 0,
    lifo = opts.lifo, eta = false, deid = dedup_id, dedup = type(opts.de) == 'table' and opts.de or {},
  }
end

-- What the end of a job does to its deduplication id: a key that lives as long as its owner goes, and the job that
-- was held back for it follows (protocol §4.3 UNDEDUP, REQUEUE). In pcall by the caller.
local function let_go(q, meta, id, dedup_id, now)
  local key, held = q.prefix .. 'de:' .. dedup_id, q.prefix .. 'dn:' .. dedup_id
  local add = read_held(q, held, dedup_id)
  local left = redis.call('PTTL', key)
  local owned = left == 0 or (left == -1 and read('GET', key) == id)
  if add and not add.id then add.id = string.format('%.0f', redis.call('INCR', q.prefix .. 'id')) end
  if not add or redis.call('EXISTS', q.prefix .. add.id) == 1 then
    if owned then redis.call('DEL', key) end
    redis.call('DEL', held)
    return
  end
  local ready = enqueue(q, add, now)
  if whole(add.dedup.ttl) and not add.dedup.keepLastIfActive then
    redis.call('SET', key, add.id, 'PX', add.dedup.ttl)
  else
    redis.call('SET', key, add.id)
  end
  redis.call('DEL', held)
  if ready and not is_closed(q, meta) then ring(q) end
  ring_delay(q)
end
