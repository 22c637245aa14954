--- @include "checked"
--- @include "enqueue"
--- @include "marker"

-- Adds that a finishing run brings along, or that a finished run lets go: msgpack [[id, name, payload, options,
-- field, parent key or nil, parent map] ...]. Bad ones raise here, before the first write.
local function read_follow(prefix, packed)
  local follow = {}
  for i, given in ipairs(packed and packed ~= '' and cmsgpack.unpack(packed) or {}) do
    local opts = given[4]
    if i > 100 or type(given[1]) ~= 'string' or type(opts) ~= 'table' then
      refuse('ERR EMQ follow: at most 100 jobs of [id, name, payload, options, field]')
    end
    follow[i] = {
      prefix = prefix, id = given[1], name = given[2], payload = given[3], field = given[5], nonce = '',
      opts_json = encode_opts(opts), delay = whole(opts.delay) or 0, priority = whole(opts.priority) or 0,
      lifo = opts.lifo, eta = false, parent_key = given[6] or nil, parent_json = given[6] and cjson.encode(given[7]),
    }
  end
  return follow
end

-- Publishes them, before the run that brings them leaves `active`: a break in between doubles, never loses (T2).
local function publish(q, meta, follow, now)
  local ready = false
  for _, add in ipairs(follow) do
    local job = add.prefix .. add.id
    if redis.call('EXISTS', job) == 0 then
      ready = enqueue(q, add, now) or ready
      -- Before the run's own edge is settled, so that a parent with new children is not released by it.
      if add.parent_key then redis.call('SADD', add.parent_key .. ':dependencies', job) end
    end
  end
  if #follow == 0 then return end
  redis.pcall('INCRBY', q.prefix .. 'id', #follow)
  if ready and not is_closed(q, meta) then ring(q) end
  ring_delay(q)
end

-- What the end of a job does to its deduplication id: a key that lives as long as its owner goes, and the job that
-- was held back for it follows (protocol §4.3 UNDEDUP, REQUEUE). In pcall by the caller.
local function let_go(q, meta, id, dedup_id, now)
  local key, held = q.prefix .. 'de:' .. dedup_id, q.prefix .. 'dn:' .. dedup_id
  local left = redis.call('PTTL', key)
  if left == 0 or (left == -1 and redis.call('GET', key) == id) then redis.call('DEL', key) end
  local flat = redis.call('HGETALL', held)
  if #flat == 0 then return end
  local h = {}
  for i = 1, #flat, 2 do h[flat[i]] = flat[i + 1] end
  local opts = cjson.decode(h.opts or '{}')
  local de = type(opts.de) == 'table' and opts.de or {}
  local new_id = h.jid
  if not new_id then new_id = string.format('%.0f', redis.call('INCR', q.prefix .. 'id')) end
  local field = h.args and 'args' or 'data'
  local ready = enqueue(q, {
    prefix = q.prefix, id = new_id, name = h.name, payload = h[field] or '', field = field, nonce = '',
    opts_json = h.opts or '{}', delay = whole(opts.delay) or 0, priority = whole(opts.priority) or 0,
    lifo = opts.lifo, eta = false, deid = dedup_id,
  }, now)
  if whole(de.ttl) and not de.keepLastIfActive then
    redis.call('SET', key, new_id, 'PX', de.ttl)
  else
    redis.call('SET', key, new_id)
  end
  redis.call('DEL', held)
  if ready and not is_closed(q, meta) then ring(q) end
  ring_delay(q)
end
