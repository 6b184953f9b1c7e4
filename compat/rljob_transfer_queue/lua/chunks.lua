-- Where bytes lie: the rows' entries of each field, and how many rows still need a chunk.
-- `chunks` and `refs` of a partition: chunk id -> its line, and its number of rows. A chunk that nobody needs goes to the
-- trash, the chunks of a cleared partition stay in its own hash: whoever clears deletes them from the units, then here.

-- A field of a commit: name, number of chunks, id and line of each, the rows' entries.
local function read_field(args, at)
  local field = {name = args[at], ids = {}, lines = {}}
  local count = tonumber(args[at + 1])
  for i = 1, count do
    field.ids[i], field.lines[i] = args[at + 2 * i], args[at + 2 * i + 1]
  end
  field.entries = args[at + 2 + 2 * count]
  return field, at + 3 + 2 * count
end

-- A key is that of a client, its connections and a number that only grows: `0:INCARNATION:RANDOM` and the number.
-- `tq:swept`: the former -> the highest number that was given up for lost; none up to it is committed from then on.
local SWEPT = 'tq:swept'

local function number_of_key(name)
  local writer, digits = string.match(name, '^(%d+:%x+:%x%x%x%x%x%x%x%x)(%x+)$')
  return writer, digits and tonumber(digits, 16)
end

-- Keys of chunks that are about to be deleted, unless they are named by now.
repeatable('condemn', function(keys)
  for _, name in ipairs(keys) do
    local writer, number = number_of_key(name)
    if writer and number > tonumber(redis.call('HGET', SWEPT, writer) or '-1') then redis.call('HSET', SWEPT, writer, number) end
  end
  return {}
end)

-- Bytes of a commit were not swept since they were stored: their client may have slept for any time.
local function require_unswept(fields)
  if redis.call('EXISTS', SWEPT) == 0 then return end
  for _, field in ipairs(fields) do
    for _, line in ipairs(field.lines) do
      local writer, number = number_of_key(string.match(line, '[^|]*$'))
      if writer and number <= tonumber(redis.call('HGET', SWEPT, writer) or '-1') then
        error({err = 'SWEPT these bytes waited for their commit for so long that they were swept. Put them again'})
      end
    end
  end
end

-- unit|generation|field|rows|dtype|shape|bytes|key; the field may hold anything but a bar.
local function rows_in(line) return tonumber(string.match(line, '^%d+|%d+|[^|]*|(%d+)|')) end

local function keep_chunks(p, field)
  for i, id in ipairs(field.ids) do
    redis.call('HSET', key(p, 'chunks'), id, field.lines[i])
    redis.call('HSET', key(p, 'refs'), id, rows_in(field.lines[i]))
  end
end

local function release_entries(p, entries)
  local counts = {}
  for i = 1, #entries, ROW_BYTES do
    local id = string.sub(entries, i, i + ID_BYTES - 1)
    counts[id] = (counts[id] or 0) + 1
  end
  for id, count in pairs(counts) do
    if redis.call('HEXISTS', key(p, 'refs'), id) == 1 and redis.call('HINCRBY', key(p, 'refs'), id, -count) <= 0 then
      redis.call('HSET', TRASH, id, redis.call('HGET', key(p, 'chunks'), id))
      redis.call('HDEL', key(p, 'refs'), id)
      redis.call('HDEL', key(p, 'chunks'), id)
    end
  end
end

-- Lets go of what the rows have in a field; `produced` are their flags of it.
local function release_field(p, field, run, produced)
  each_run(produced, function(first, count)
    release_entries(p, range(key(p, 'f:' .. field), run[1] + first - 1, count, ROW_BYTES))
  end)
end

-- Calls `visit(document)` for each place, '' where there is none; 1000 are read at once, since Lua's stack has room for 8000.
local function each_document(p, first, count, visit)
  for start = first, first + count - 1, 1000 do
    local places = {}
    for place = start, math.min(start + 999, first + count - 1) do places[#places + 1] = place end
    for _, document in ipairs(redis.call('HMGET', key(p, 'docs'), unpack(places))) do visit(document or '') end
  end
end

local function documents(p, runs)
  local parts = {}
  if redis.call('EXISTS', key(p, 'docs')) == 0 then return '' end
  for _, run in ipairs(runs) do
    each_document(p, run[1], run[2], function(document)
      parts[#parts + 1] = struct.pack('<I4', #document) .. document
    end)
  end
  return table.concat(parts)
end

-- What a reader needs of rows: their numbers, their documents, the entries of each field, then ids and lines of all chunks.
local function placement(p, runs, fields)
  local answer, seen, ids = {numbers_of(p, runs), documents(p, runs)}, {}, {}
  for _, field in ipairs(fields) do
    local entries, last = gather(key(p, 'f:' .. field), runs, ROW_BYTES), nil
    for i = 1, #entries, ROW_BYTES do
      local id = string.sub(entries, i, i + ID_BYTES - 1)
      if id ~= last and not seen[id] then
        seen[id] = true
        if string.find(id, '%Z') then ids[#ids + 1] = id end
      end
      last = id
    end
    answer[#answer + 1] = entries
  end
  answer[#answer + 1] = table.concat(ids)
  for i = 1, #ids, 1000 do
    local found = redis.call('HMGET', key(p, 'chunks'), unpack(ids, i, math.min(i + 999, #ids)))
    for _, line in ipairs(found) do answer[#answer + 1] = line or '' end
  end
  return answer
end

-- Hashes of chunks that are to be deleted.
reading('trash_names', function()
  local names = redis.call('EXISTS', TRASH) == 1 and {TRASH} or {}
  for _, p in ipairs(redis.call('SMEMBERS', GONE)) do names[#names + 1] = key(p, 'chunks') end
  return names
end)

-- Up to so many chunks of such a hash: id and line of each.
reading('trash', function(args) return redis.call('HRANDFIELD', args[1], args[2], 'WITHVALUES') end)

repeatable('drop_trash', function(args)
  local name = args[1]
  for i = 2, #args, 1000 do redis.call('HDEL', name, unpack(args, i, math.min(i + 999, #args))) end
  if name ~= TRASH and redis.call('EXISTS', name) == 0 then
    redis.call('SREM', GONE, string.match(name, '^tq:(%d+):'))
  end
  return {}
end)

-- The lines of all chunks that a partition or the trash names.
reading('chunks', function()
  local lines, names = {}, {TRASH}
  for _, list in ipairs({redis.call('HVALS', PARTITIONS), redis.call('SMEMBERS', GONE)}) do
    for _, p in ipairs(list) do names[#names + 1] = key(p, 'chunks') end
  end
  for _, name in ipairs(names) do
    for _, line in ipairs(redis.call('HVALS', name)) do lines[#lines + 1] = line end
  end
  return lines
end)
