-- A number that can be counted with, or nil: another client may have written anything.
local function whole(text)
  local n = tonumber(text)
  if n and n >= 0 and n <= 9007199254740991 and n % 1 == 0 then return n end
  return nil
end

-- A whole number as text. A number that a command is given is written with seventeen digits, which costs as much as
-- the command.
local function digits(n)
  if n == 0 then return '0' end
  if n == 1 then return '1' end
  return string.format('%.0f', n)
end

-- Ends the script with an error that a person can act on.
local function refuse(text)
  error(redis.error_reply(text))
end

-- Runs a read. Returns the reply, and whether the key is of another type; any other error ends the script.
local function try_read(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply, false end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply) end
  return false, true
end

-- Reads a key of the queue, before anything is written: one of another type ends the script here, by its name (T2).
local function read(command, key, ...)
  local reply, wrong = try_read(command, key, ...)
  if wrong then refuse('WRONGTYPE EMQ the key ' .. key .. ' is not of the type that ' .. command .. ' needs') end
  return reply
end

-- Reads a key of one job; one of another type counts as missing, so that it holds up no other job.
local function read_job(...)
  return (try_read(...))
end

-- Fields to store with a job: a msgpack list of names and values, or empty.
local function read_fields(packed)
  if packed == '' then return {} end
  local fields = cmsgpack.unpack(packed)
  if type(fields) ~= 'table' or #fields % 2 ~= 0 or #fields > 200 then refuse('ERR EMQ fields: at most 100 pairs') end
  for _, part in ipairs(fields) do
    if type(part) ~= 'string' and type(part) ~= 'number' then refuse('ERR EMQ fields: texts and numbers only') end
  end
  return fields
end
