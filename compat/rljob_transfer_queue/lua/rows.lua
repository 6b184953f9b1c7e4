-- Rows come, get fields, documents and keys, are looked up, and go.

-- A partition and the places of rows of it, all of which must be there.
local function live_rows(name, packed, count)
  local p = require_partition(name)
  local runs = places_of(p, packed)
  if size_of(runs) ~= count then refuse('some of these rows are not in partition ' .. name .. ': they were cleared') end
  if string.find(gather(key(p, 'live'), runs), '[^\1]') then
    refuse('some of these rows of partition ' .. name .. ' were cleared')
  end
  return p, runs
end

-- From here on a batch that was taken before may know old places of rows.
local function note_change(p) redis.call('HINCRBY', key(p, 'numbers'), 'changes', 1) end

-- The rows now have these fields: consumers whose fields are complete get them.
local function produce(p, name, runs, fields)
  local consumers, index, fresh, replaced = consumers_of(p), 1, {}, false
  for _, field in ipairs(fields) do
    fresh[field.name] = true
    redis.call('SADD', key(p, 'fields'), field.name)
    keep_chunks(p, field)
  end
  for _, run in ipairs(runs) do
    local before, ones = {}, string.rep('\1', run[2])
    for _, field in ipairs(fields) do
      local flags = key(p, 'h:' .. field.name)
      before[field.name] = range(flags, run[1], run[2])
      release_field(p, field.name, run, before[field.name])
      replaced = replaced or has_ones(before[field.name])
      redis.call('SETRANGE', flags, run[1], ones)
      local bytes = string.sub(field.entries, (index - 1) * ROW_BYTES + 1, (index - 1 + run[2]) * ROW_BYTES)
      redis.call('SETRANGE', key(p, 'f:' .. field.name), run[1] * ROW_BYTES, bytes)
    end
    for _, c in ipairs(consumers) do
      local had, touched = ones, false
      for _, field in ipairs(c.fields) do
        if fresh[field] then had, touched = both(had, before[field]), true end
      end
      if touched then
        local ready = without(ready_flags(p, c.task, c.fields, run[1], run[2]), had)
        if enlist(p, c, run[1], ready) then wake(name) end
      end
    end
    index = index + run[2]
  end
  if replaced then note_change(p) end
end

-- Documents of rows: each a length and its bytes; one of length 0 is taken away.
local function set_documents(p, runs, packed)
  local at = 1
  for _, run in ipairs(runs) do
    for place = run[1], run[1] + run[2] - 1 do
      local length = struct.unpack('<I4', packed, at)
      if length == 0 then
        redis.call('HDEL', key(p, 'docs'), place)
      else
        redis.call('HSET', key(p, 'docs'), place, string.sub(packed, at + 4, at + 3 + length))
      end
      at = at + 4 + length
    end
  end
end

-- partition, rows (packed runs of numbers; '' for new ones), how many, expected rows of a new partition, documents ('' for
-- none), then the fields. Answers the rows' numbers.
changing('put', function(args)
  local name, count, runs, p = args[1], tonumber(args[3]), nil, nil
  local fields, at = {}, 6
  while at <= #args do fields[#fields + 1], at = read_field(args, at) end
  require_in_force(fields)
  require_unswept(fields)
  if args[2] == '' then
    p = make_partition(name, tonumber(args[4]))
    runs = new_places(p, count)
  else
    p, runs = live_rows(name, args[2], count)
  end
  produce(p, name, runs, fields)
  if args[5] ~= '' then set_documents(p, runs, args[5]) end
  return {numbers_of(p, runs)}
end)

-- partition, rows, how many, documents
changing('set_documents', function(args)
  local p, runs = live_rows(args[1], args[2], tonumber(args[3]))
  set_documents(p, runs, args[4])
  return {}
end)

-- partition, rows, how many, then the fields
reading('locate', function(args)
  local p, runs = live_rows(args[1], args[2], tonumber(args[3]))
  return placement(p, runs, rest_of(args, 4))
end)

-- Strings of a partition as they are, by their names (`live`, `h:FIELD` ...); nothing where there is no partition.
reading('look', function(args)
  local p = partition_of(args[1])
  if not p then return {} end
  local found = {}
  for i = 2, #args do found[i - 1] = redis.call('GET', key(p, args[i])) or '' end
  return found
end)

reading('fields', function(args)
  local p = partition_of(args[1])
  return p and redis.call('SMEMBERS', key(p, 'fields')) or {}
end)

-- Of these partitions, whether rows of any were replaced or cleared since it was made.
reading('changed', function(args)
  for _, name in ipairs(args) do
    local p = partition_of(name)
    if p and number_of(p, 'changes') > 0 then return 1 end
  end
  return 0
end)

reading('partitions', function() return redis.call('HKEYS', PARTITIONS) end)

-- --- keys -----------------------------------------------------------------------------------------------------------

-- Keys that are not there: given new rows, or left out.
local function places_of_keys(p, keys)
  local places, missing = {}, {}
  for first = 1, #keys, 1000 do
    local found = redis.call('HMGET', key(p, 'keys'), unpack(keys, first, math.min(first + 999, #keys)))
    for i, place in ipairs(found) do
      if place then places[first + i - 1] = tonumber(place) else missing[#missing + 1] = first + i - 1 end
    end
  end
  return places, missing
end

-- The fields that all of the rows have, then what a reader needs of them.
local function shared_placement(p, runs)
  local shared, ones = {}, string.rep('\1', size_of(runs))
  for _, field in ipairs(redis.call('SMEMBERS', key(p, 'fields'))) do
    if gather(key(p, 'h:' .. field), runs) == ones then shared[#shared + 1] = field end
  end
  table.sort(shared)
  local answer = placement(p, runs, shared)
  for i = #shared, 1, -1 do table.insert(answer, 1, shared[i]) end
  table.insert(answer, 1, #shared)
  return answer
end

local function answer_of_keys(p, keys)
  local places = places_of_keys(p, keys)
  local runs = {}
  for i = 1, #keys do
    if places[i] then push_run(runs, places[i], 1) end
  end
  return shared_placement(p, runs)
end

-- partition, keys: number and names of the fields that all rows of these keys have, and the rows' placement.
reading('find_keys', function(args)
  local p = partition_of(args[1])
  if not p then return {} end
  return answer_of_keys(p, rest_of(args, 2))
end)

-- partition, expected rows of a new partition, keys
changing('make_keys', function(args)
  local p, keys = make_partition(args[1], tonumber(args[2])), rest_of(args, 3)
  local _, missing = places_of_keys(p, keys)
  if #missing > 0 then
    local place = new_places(p, #missing)[1][1]
    for _, i in ipairs(missing) do
      redis.call('HSET', key(p, 'keys'), keys[i], place)
      redis.call('HSET', key(p, 'names'), place, keys[i])
      place = place + 1
    end
  end
  return answer_of_keys(p, keys), {p}
end, function(record, args) return answer_of_keys(record[1], rest_of(args, 3)) end)

-- partition, rows: the key of each, '' where a row has none
reading('names', function(args)
  local p, names = partition_of(args[1]), {}
  if not p then return {} end
  for _, run in ipairs(places_of(p, args[2])) do
    for place = run[1], run[1] + run[2] - 1 do names[#names + 1] = redis.call('HGET', key(p, 'names'), place) or '' end
  end
  return names
end)

-- partition: place, key and document of every key
reading('list_keys', function(args)
  local p, listed = partition_of(args[1]), {}
  if not p then return false end
  local all = redis.call('HGETALL', key(p, 'keys'))
  for i = 1, #all, 2 do
    listed[#listed + 1] = all[i + 1]
    listed[#listed + 1] = all[i]
    listed[#listed + 1] = redis.call('HGET', key(p, 'docs'), all[i + 1]) or ''
  end
  return listed
end)

-- --- clearing -------------------------------------------------------------------------------------------------------

-- partition, rows; those that are not there any more do not matter
changing('clear_rows', function(args)
  local p = partition_of(args[1])
  if not p then return {} end
  local runs = still_live(p, places_of(p, args[2]))
  if #runs > 0 then note_change(p) end
  for _, c in ipairs(consumers_of(p)) do unlist(p, c, runs) end
  for _, run in ipairs(runs) do
    for _, field in ipairs(redis.call('SMEMBERS', key(p, 'fields'))) do
      local produced = range(key(p, 'h:' .. field), run[1], run[2])
      release_field(p, field, run, produced)
      if has_ones(produced) then
        fill(key(p, 'h:' .. field), run[1], run[2], '\0')
        fill(key(p, 'f:' .. field), run[1] * ROW_BYTES, run[2] * ROW_BYTES, '\0')
      end
    end
    fill(key(p, 'live'), run[1], run[2], '\0')
    for place = run[1], run[1] + run[2] - 1 do
      redis.call('HDEL', key(p, 'docs'), place)
      local name = redis.call('HGET', key(p, 'names'), place)
      if name then redis.call('HDEL', key(p, 'keys'), name) end
      redis.call('HDEL', key(p, 'names'), place)
    end
  end
  return {}
end)

changing('clear_partition', function(args)
  local p = partition_of(args[1])
  if not p then return {0} end
  local pages = redis.call('GET', key(p, 'pages')) or ''
  for i = 1, #pages, 8 do redis.call('HDEL', PAGES, (struct.unpack('<I8', pages, i))) end
  for _, field in ipairs(redis.call('SMEMBERS', key(p, 'fields'))) do
    redis.call('UNLINK', key(p, 'h:' .. field), key(p, 'f:' .. field))
  end
  for _, task in ipairs(redis.call('SMEMBERS', key(p, 'tasks'))) do redis.call('UNLINK', key(p, 'c:' .. task), key(p, 'b:' .. task)) end
  for _, c in ipairs(consumers_of(p)) do redis.call('UNLINK', key(p, 'r:' .. c.id), key(p, 'w:' .. c.id), key(p, 'n:' .. c.id)) end
  for _, part in ipairs({'pages', 'live', 'numbers', 'fields', 'tasks', 'consumers', 'asked', 'docs', 'keys', 'names', 'refs'}) do
    redis.call('UNLINK', key(p, part))
  end
  if redis.call('EXISTS', key(p, 'chunks')) == 1 then redis.call('SADD', GONE, p) end
  redis.call('HDEL', PARTITIONS, args[1])
  return {1}
end)

-- --- the queue as a whole -------------------------------------------------------------------------------------------

-- Settings and their owner, unless there are some already; answers those in force.
repeatable('configure', function(args)
  redis.call('HSETNX', CONFIG, 'settings', args[1])
  redis.call('HSETNX', CONFIG, 'owner', args[2])
  return {redis.call('HGET', CONFIG, 'settings'), redis.call('HGET', CONFIG, 'owner')}
end)

reading('settings', function()
  return {redis.call('HGET', CONFIG, 'settings') or '', redis.call('HGET', CONFIG, 'owner') or ''}
end)

repeatable('forget_settings', function(args)
  if redis.call('HGET', CONFIG, 'owner') ~= args[1] then return {} end
  redis.call('DEL', CONFIG)
  forget_units()
  return {}
end)
