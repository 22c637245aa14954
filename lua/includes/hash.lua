-- Writes the fields that every job has, and more where it has more. A payload above 64 bytes makes the hash a table, and
-- one that grows past four fields keeps its old places, 32 bytes, until enough fields have been set: two are set twice.
local function write_hash(job, name, field, payload, opts_json, now_text, delay, priority, ...)
  if #payload > 64 then
    redis.call('HSET', job, 'name', name, field, payload, 'opts', opts_json, 'timestamp', now_text, 'delay', delay,
      'priority', priority, 'delay', delay, 'priority', priority, ...)
  else
    redis.call('HSET', job, 'name', name, field, payload, 'opts', opts_json, 'timestamp', now_text, 'delay', delay,
      'priority', priority, ...)
  end
end
