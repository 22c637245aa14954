--- @include "checked"
--- @include "dedup"
--- @include "drop"
--- @include "events"
--- @include "parent"

-- The codes with which an add ends early, or nil: -5 parent missing, -7 the existing job has another living parent,
-- 0 the id exists (2: by this very call).
local function add_refusal(add)
  if add.parent_key and redis.call('EXISTS', add.parent_key) == 0 then return -5 end
  if add.dependencies then read('SCARD', add.dependencies) end
  if add.id == '' or redis.call('EXISTS', add.prefix .. add.id) == 0 then return nil end
  -- Ours alone make ids without a nonce, so such an id can only be there from a request whose reply was lost (T5).
  if add.nonce == '' or read_job('HGET', add.prefix .. add.id, 'an') == add.nonce then return 2 end
  if add.rerun then
    for _, set in ipairs({ add.prefix .. 'completed', add.prefix .. 'failed' }) do
      if read('ZSCORE', set, add.id) then
        add.replaces, add.ats = set, read_job('HGET', add.prefix .. add.id, 'ats')
        return nil
      end
    end
  end
  local old_parent = read_job('HGET', add.prefix .. add.id, 'parentKey')
  if add.parent_key and old_parent and old_parent ~= add.parent_key and redis.call('EXISTS', old_parent) == 1 then
    return -7
  end
  return 0
end

-- Hangs an existing job under a parent: as one that is done where it has completed, else as one to wait for.
local function attach(add, now)
  local job = add.prefix .. add.id
  redis.call('HSET', job, 'parentKey', add.parent_key, 'parent', add.parent_json)
  redis.call('SADD', add.dependencies, job)
  if read_job('ZSCORE', add.prefix .. 'completed', add.id) then
    local value = redis.call('HMGET', job, 'returnvalue', 'result')
    settle_edge(settle_completed, add.parent_key, job, value[1] or value[2] or 'null', now)
  end
end

-- Takes the job that a rerun replaces out of its finished set, right after the new one stands in its key.
local function leave_finished(add)
  if add.replaces then redis.call('ZREM', add.replaces, add.id) end
end

-- Writes the job hash; the caller puts the id into its key right after.
local function store_job(add, now)
  local job = add.prefix .. add.id
  local fields = {
    'name', add.name, add.field, add.payload, 'opts', add.opts_json,
    'timestamp', now, 'delay', add.delay, 'priority', add.priority,
  }
  local function set(name, value)
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
  if add.nonce ~= '' then set('an', add.nonce) end
  if add.replaces then
    drop_job(job)
    -- The fence never falls, not even with a new run of an old id (T6).
    set('ats', whole(add.ats) or 0)
  end
  if add.parent_key then
    set('parentKey', add.parent_key)
    set('parent', add.parent_json)
  end
  if add.deid then set('deid', add.deid) end
  redis.call('HSET', job, unpack(fields))
end

-- Options as they are stored. A value that JSON lacks raises here, before anything is written.
local function encode_opts(opts)
  return next(opts) and cjson.encode(opts) or '{}'
end

-- What the scripts that add one job have in common: ARGV[1..5] in, a table out. Bad arguments raise here.
local function read_add(q, head, payload, opts, field, eta)
  local h = cmsgpack.unpack(head)
  local o = cmsgpack.unpack(opts)
  if eta ~= '' and not whole(eta) then refuse('ERR EMQ eta: ms since the epoch, or empty') end
  q.prefix = h[1]
  local dedup = h[9] and o.de
  if dedup and (type(dedup) ~= 'table' or h[9] ~= h[1] .. 'de:' .. tostring(dedup.id) or h[5]) then
    refuse('ERR EMQ deduplication: an id, its key, and no parent')
  end
  return {
    prefix = h[1], id = h[2], name = h[3], timestamp = h[4] or '', parent_key = h[5], dependencies = h[6],
    parent_json = h[7] and cjson.encode(h[7]), nonce = h[10] or '', rerun = h[11] == true, payload = payload, opts = o, lifo = o.lifo,
    dedup = dedup, dedup_key = h[9], deid = dedup and dedup.id,
    opts_json = encode_opts(o), field = field, eta = whole(eta), delay = whole(o.delay) or 0,
    priority = whole(o.priority) or 0,
  }
end

-- The id that this add takes: the one given, which is only counted, or the counter's next.
local function take_id(q, add)
  if add.id ~= '' then
    redis.pcall('INCR', q.id)
    return
  end
  local count = whole(read('GET', q.id) or 0)
  if not count then refuse('ERR EMQ the key ' .. q.id .. ' is no counter') end
  local id = string.format('%.0f', count + 1)
  if redis.call('EXISTS', add.prefix .. id) == 1 then refuse('ERR EMQ the key ' .. q.id .. ' is behind the jobs') end
  redis.call('INCR', q.id)
  add.id = id
end

-- Everything that ends an add before it made a job, in the order of protocol §4.4; nil: go on. Also returns what
-- deduplication says of the owner, for claim_dedup. A repeated request must not leave a second event.
local function answer_early(q, meta, add, now)
  local code = add_refusal(add)
  if code and code < 0 then return code end
  if code == 0 then
    if add.parent_key then attach(add, now) end
    redis.pcall('INCR', q.id)
    emit_trimming(q, meta, 'duplicated', 'jobId', add.id)
  end
  if code then return { add.id, code } end
  local verdict = add.dedup and dedup_verdict(add)
  if verdict and verdict.stays then return answer_duplicate(q, meta, add, verdict) end
  return nil, verdict
end
