--- @include "events"

-- The two codes with which an add ends early, or nil: -5 parent missing, 0 the id exists (2: by this very call).
local function add_refusal(add)
  if add.parent_key and redis.call('EXISTS', add.parent_key) == 0 then return -5 end
  if add.dependencies then redis.call('SCARD', add.dependencies) end
  if add.id == '' or redis.call('EXISTS', add.prefix .. add.id) == 0 then return nil end
  -- Ours alone make ids without a nonce, so such an id can only be there from a request whose reply was lost (T5).
  if add.nonce == '' or redis.call('HGET', add.prefix .. add.id, 'an') == add.nonce then return 2 end
  return 0
end

-- Writes the job hash; the caller puts the id into its key right after.
local function store_job(add, now)
  local job = add.prefix .. add.id
  local opts = add.opts
  local fields = {
    'name', add.name, add.field, add.payload, 'opts', next(opts) and cjson.encode(opts) or '{}',
    'timestamp', now, 'delay', add.delay, 'priority', add.priority,
  }
  local function set(name, value)
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
  if add.nonce ~= '' then set('an', add.nonce) end
  if add.parent_key then
    set('parentKey', add.parent_key)
    set('parent', cjson.encode(add.parent))
  end
  redis.call('HSET', job, unpack(fields))
end

-- What the scripts that add one job have in common: ARGV[1..5] in, a table out. Bad arguments raise here.
local function read_add(head, payload, opts, field, eta)
  local h = cmsgpack.unpack(head)
  local o = cmsgpack.unpack(opts)
  return {
    prefix = h[1], id = h[2], name = h[3], timestamp = h[4] or '', parent_key = h[5], dependencies = h[6],
    parent = h[7], nonce = h[10] or '', payload = payload, opts = o, field = field, eta = eta,
    delay = tonumber(o.delay) or 0, priority = tonumber(o.priority) or 0,
  }
end

-- The id that this add takes: the one given, or the counter's value.
local function take_id(q, add)
  local count = redis.call('INCR', q.id)
  if add.id == '' then add.id = string.format('%.0f', count) end
end

-- Ends an add that found its id taken; a repeated request must not leave a second event.
local function answer_existing(q, meta, add, code)
  if code == 0 then
    redis.call('INCR', q.id)
    emit_trimming(q, meta, 'duplicated', 'jobId', add.id)
  end
  return { add.id, code }
end
