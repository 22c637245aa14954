--- @include "checked"
--- @include "child"
--- @include "dedup"
--- @include "drop"
--- @include "events"
--- @include "hash"
--- @include "length"
--- @include "parent"

-- The codes with which an add ends early, or nil: -5, -2, -6 of the parent, -7 the existing job has another living
-- parent, 0 the id exists, or its job has ended for this parent and is forgotten (2: by this very call).
local function add_refusal(add)
  local refused = add.parent_key and parent_refusal(add)
  if refused then return refused end
  if add.id == '' then return nil end
  if redis.call('EXISTS', add.prefix .. add.id) == 0 then
    add.forgotten = has_settled(add)
    return add.forgotten and (add.nonce == '' and 2 or 0) or nil
  end
  -- Ours alone make ids without a nonce, so such an id can only be there from a request whose reply was lost (T5).
  if add.nonce == '' or read_job('HGET', add.prefix .. add.id, 'an') == add.nonce then return 2 end
  refused = child_refusal(add, add.prefix .. add.id)
  if refused then return refused end
  if add.rerun then
    for _, set in ipairs({ add.prefix .. 'completed', add.prefix .. 'failed' }) do
      if read('ZSCORE', set, add.id) then
        add.replaces, add.ats = set, read_job('HGET', add.prefix .. add.id, 'ats')
        return nil
      end
    end
  end
  return 0
end

-- Takes the job that a rerun replaces out of its finished set, right after the new one stands in its key. A parent
-- that waited for the old run waits for the new one.
local function leave_finished(add)
  if not add.replaces then return end
  redis.call('ZREM', add.replaces, add.id)
  local parent = add.parent_key or add.old_parent_key
  if parent then settle_edge(reopen_edge, parent, add.prefix .. add.id) end
end

-- The fields that most jobs do not have.
local function rare_fields(add)
  local fields = {}
  local function set(name, value)
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
  if add.nonce ~= '' then set('an', add.nonce) end
  -- The fence never falls, not even with a new run of an old id (T6).
  if add.replaces then set('ats', digits(whole(add.ats) or 0)) end
  local parent = add.parent_key or (add.replaces and add.old_parent_key)
  if parent then
    set('parentKey', parent)
    set('parent', add.parent_key and add.parent_json or add.old_parent_json or '{}')
  end
  if add.deid then set('deid', add.deid) end
  if add.rjk then set('rjk', add.rjk) end
  return fields
end

-- Writes the job hash; the caller puts the id into its key right after. add.rare: its rare_fields, where many jobs
-- share them.
local function store_job(add, now_text)
  local job = add.prefix .. add.id
  if add.replaces then drop_job(job) end
  write_hash(job, add.name, add.field, add.payload, add.opts_json, now_text, digits(add.delay), digits(add.priority),
    unpack(add.rare or rare_fields(add)))
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
  check_child(h[5], h[6], h[7], h[14])
  local dedup = h[9] and o.de
  if dedup and (type(dedup) ~= 'table' or h[9] ~= h[1] .. 'de:' .. tostring(dedup.id) or h[5]) then
    refuse('ERR EMQ deduplication: an id, its key, and no parent')
  end
  return {
    prefix = h[1], id = h[2], name = h[3], timestamp = h[4] or '', parent_key = h[5], dependencies = h[6],
    parent_json = h[7] and cjson.encode(h[7]), nonce = h[10] or '', rerun = h[11] == true, payload = payload,
    opts = o, lifo = o.lifo, dedup = dedup, dedup_key = h[9], deid = dedup and dedup.id, room = whole(h[12]) or 1,
    admitted_by = h[13], within = h[14], opts_json = encode_opts(o), field = field, eta = whole(eta), delay = whole(o.delay) or 0,
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

-- The error of an add that the queue has no room for, or nil. A child is never refused, nor one that replaces
-- another; the members of a group are admitted by the first of them, so that all are there or none.
local function room_refusal(add, meta, verdict)
  if add.admitted_by then
    if redis.call('EXISTS', add.admitted_by) == 1 then return nil end
    return redis.error_reply('EMQFULL the first job of this group was not admitted')
  end
  if add.parent_key or (verdict and verdict.replaced) then return nil end
  return full_refusal(add.prefix, meta, add.room)
end

-- Everything that ends an add before it made a job, in the order of protocol §4.4; nil: go on. Also returns what
-- deduplication says of the owner, for claim_dedup. A repeated request must not leave a second event.
local function answer_early(q, meta, add, now)
  local code = add_refusal(add)
  if code and code < 0 then return code end
  if code == 0 then
    if add.parent_key and not add.forgotten then attach(add, now) end
    redis.pcall('INCR', q.id)
    emit_trimming(q, meta, 'duplicated', 'jobId', add.id)
  end
  if code then return { add.id, code } end
  local verdict = add.dedup and dedup_verdict(add)
  if verdict and verdict.stays then return answer_duplicate(q, meta, add, verdict) end
  return room_refusal(add, meta, verdict), verdict
end
