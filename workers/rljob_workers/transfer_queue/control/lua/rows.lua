-- Rows: readiness masks, states per task, ready lists, chunk tables.
-- A partition r has, for all its rows: `mask` (u32, a bit per field), `weights` (oldest and newest weight of the tokens),
-- `f:FIELD` (chunk id, offset, length, producing weight), `s:TASK` (a letter: unready, ready, claimed, done),
-- `q:TASK` (what is ready: `ready.lua`), `done` (hash task -> rows done), `chunks` and `refs` (hash chunk id -> ...),
-- `b:TASK` (hash training batch -> rows) and `groups` (hash group -> record).

-- `refused` counts those of its attempts that a filter has closed. `late` says whether it was finished with none but too old
-- tokens: 1, before weights that its rollout learns from were there; 2, when they were (0: neither). Records of a release before
-- them have none. `begun` is the rollout that its prompt was first issued for.
local function load_group(r, group)
  local packed = redis.call('HGET', key(r, 'groups'), group)
  if not packed then return {state = 'o', attempt = 0, prompt = -1, ticket = 0, rejected = {}, refused = 0, late = 0} end
  local t = cmsgpack.unpack(packed)
  return {state = t[1], attempt = t[2], prompt = t[3], ticket = t[4], rejected = t[5], refused = t[6] or 0,
          late = t[7] or 0, begun = t[8]}
end

local function save_group(r, group, g)
  redis.call('HSET', key(r, 'groups'), group,
    cmsgpack.pack({g.state, g.attempt, g.prompt, g.ticket, g.rejected, g.refused, g.late, g.begun}))
end

-- The state alone, where thousands of records are looked at: a letter behind the heads of the list and of its first text.
local function group_state(packed) return string.sub(packed, 3, 3) end

local function make_partition(r)
  if redis.call('ZADD', PARTITIONS, 'NX', r, r) == 0 then return end
  redis.call('SET', key(r, 'mask'), string.rep('\0', 4 * SHAPE.rows))
  for _, task in ipairs(SHAPE.tasks) do redis.call('SET', key(r, 's:' .. task.name), string.rep('u', SHAPE.rows)) end
end

local function drop_partition(r)
  redis.call('DEL', key(r, 'mask'), key(r, 'weights'), key(r, 'done'), key(r, 'chunks'), key(r, 'refs'), key(r, 'groups'))
  for _, field in ipairs(SHAPE.fields) do redis.call('DEL', key(r, 'f:' .. field)) end
  for _, task in ipairs(SHAPE.tasks) do
    redis.call('DEL', key(r, 's:' .. task.name), key(r, 'q:' .. task.name), key(r, 'b:' .. task.name))
    redis.call('ZREM', 'q:ready:' .. task.name, r)
    redis.call('ZREM', 'q:finished:' .. task.name, r)
  end
  redis.call('ZREM', PARTITIONS, r)
end

-- Cuts a list of rows into runs {first row, how many, index in the list}.
local function runs_of(rows)
  local runs, i = {}, 1
  while i <= #rows do
    local j = i
    while j < #rows and rows[j + 1] == rows[j] + 1 do j = j + 1 end
    runs[#runs + 1] = {rows[i], j - i + 1, i}
    i = j + 1
  end
  return runs
end

local function pack_rows(rows)
  local packed = {}
  for i = 1, #rows do packed[i] = struct.pack('<I4', rows[i]) end
  return table.concat(packed)
end

local function unpack_rows(packed)
  local rows = {}
  for i = 1, #packed / 4 do rows[i] = struct.unpack('<I4', packed, i * 4 - 3) end
  return rows
end

local function gather(name, runs, width)
  local parts = {}
  for i, run in ipairs(runs) do
    parts[i] = redis.call('GETRANGE', name, run[1] * width, (run[1] + run[2]) * width - 1)
  end
  return table.concat(parts)
end

local function scatter(name, runs, width, bytes)
  for _, run in ipairs(runs) do
    redis.call('SETRANGE', name, run[1] * width, string.sub(bytes, (run[3] - 1) * width + 1, (run[3] + run[2] - 1) * width))
  end
end

local function set_state(r, task, runs, letter)
  local name = key(r, 's:' .. task.name)
  for _, run in ipairs(runs) do redis.call('SETRANGE', name, run[1], string.rep(letter, run[2])) end
end

-- Puts rows that just became ready on the task's list; of entries of several rows those whose rows are all ready.
local function enlist(r, task, rows)
  if #rows == 0 then return end
  local span, entries = ready.span(task), rows
  if span > 1 then
    local whole, last = string.rep('r', span), -1
    entries = {}
    for _, row in ipairs(rows) do
      local entry = math.floor(row / span)
      if entry ~= last then
        last = entry
        local first = entry * span
        if redis.call('GETRANGE', key(r, 's:' .. task.name), first, first + span - 1) == whole then
          entries[#entries + 1] = entry
        end
      end
    end
  end
  if #entries == 0 then return end
  ready.push(r, task, entries)
  redis.call('ZADD', 'q:ready:' .. task.name, r, r)
  wake(task.name)
end

local function covers(mask, needs) return bit.band(mask, needs) == needs end

-- Rows first .. first + count - 1, of which those in state `u` became ready for the task.
local function make_ready(r, task, first, count)
  local name, fresh = key(r, 's:' .. task.name), {}
  local states = redis.call('GETRANGE', name, first, first + count - 1)
  if states == string.rep('u', count) then
    for i = 1, count do fresh[i] = first + i - 1 end
    redis.call('SETRANGE', name, first, string.rep('r', count))
  else
    for i = 1, count do
      if string.sub(states, i, i) == 'u' then fresh[#fresh + 1] = first + i - 1 end
    end
    set_state(r, task, runs_of(fresh), 'r')
    -- Who claimed rows for training waits for what they lost since.
    wake(task.name)
  end
  enlist(r, task, fresh)
end

-- Cuts a string of masks into stretches of the same mask: {mask, index of its first row, how many}.
local function stretches_of(masks)
  local count, first = #masks / 4, string.sub(masks, 1, 4)
  if masks == string.rep(first, count) then return {{struct.unpack('<I4', first), 1, count}} end
  local stretches, last = {}, nil
  for i = 1, count do
    local mask = struct.unpack('<I4', masks, i * 4 - 3)
    if last and last[1] == mask then
      last[3] = last[3] + 1
    else
      last = {mask, i, 1}
      stretches[#stretches + 1] = last
    end
  end
  return stretches
end

-- The rows now have the fields of `bits`: tasks whose needs are complete get them.
local function raise_bits(r, runs, bits)
  for _, run in ipairs(runs) do
    local old = redis.call('GETRANGE', key(r, 'mask'), run[1] * 4, (run[1] + run[2]) * 4 - 1)
    local new, stretches = {}, stretches_of(old)
    for i, stretch in ipairs(stretches) do
      new[i] = string.rep(struct.pack('<I4', bit.bor(stretch[1], bits)), stretch[3])
    end
    redis.call('SETRANGE', key(r, 'mask'), run[1] * 4, table.concat(new))
    for _, stretch in ipairs(stretches) do
      for _, task in ipairs(SHAPE.tasks) do
        if covers(bit.bor(stretch[1], bits), task.needs) and not covers(stretch[1], task.needs) then
          make_ready(r, task, run[1] + stretch[2] - 1, stretch[3])
        end
      end
    end
  end
end

-- Descriptor: unit|generation|field|rows|dtype|shape|bytes|key
local function descriptor_unit(descriptor)
  local unit, generation = string.match(descriptor, '^(%d+)|(%d+)|')
  return unit, generation
end

local function chunk_is_here(descriptor)
  if not descriptor then return false end
  local unit, generation = descriptor_unit(descriptor)
  return redis.call('HGET', UNITS, unit) == generation
end

local function require_units(descriptors)
  for _, descriptor in ipairs(descriptors) do
    if not chunk_is_here(descriptor) then
      refuse('STALEUNIT', 'storage unit ' .. descriptor_unit(descriptor) .. ' came back empty since the rows were stored')
    end
  end
end

-- How many rows lie in a chunk, as its descriptor says.
local function descriptor_rows(descriptor) return tonumber(string.match(descriptor, '^%d+|%d+|[^|]*|(%d+)|')) end

-- A put that is taken as a whole: every chunk has all its rows.
local function count_all(chunks)
  local counts = {}
  for id, descriptor in pairs(chunks) do counts[id] = descriptor_rows(descriptor) end
  return counts
end

-- Counts the rows of `metas` (28 bytes each) towards their chunks.
local function count_refs(counts, metas)
  for i = 1, #metas, ROW_BYTES do
    local id = string.sub(metas, i, i + ID_BYTES - 1)
    counts[id] = (counts[id] or 0) + 1
  end
end

-- Nothing names the chunk: its bytes go with a later sweep.
local function discard(descriptor)
  local unit = descriptor_unit(descriptor)
  redis.call('RPUSH', dead_on(unit), descriptor)
end

local function keep_chunks(r, chunks, counts)
  for id, descriptor in pairs(chunks) do
    if counts[id] then
      redis.call('HSET', key(r, 'chunks'), id, descriptor)
      redis.call('HINCRBY', key(r, 'refs'), id, counts[id])
    else
      discard(descriptor)
    end
  end
end

-- Takes `counts` (chunk id -> rows) off their chunks; those that nothing refers to any more are garbage.
local function release_chunks(r, counts)
  local ids, left, gone = {}, {}, {}
  for id in pairs(counts) do ids[#ids + 1] = id end
  for _, some in ipairs(portions(ids)) do
    local refs = redis.call('HMGET', key(r, 'refs'), unpack(some))
    for i, id in ipairs(some) do
      local rest = tonumber(refs[i] or '0') - counts[id]
      if rest > 0 then
        left[#left + 1] = id
        left[#left + 1] = rest
      else
        gone[#gone + 1] = id
      end
    end
  end
  for _, some in ipairs(portions(left)) do redis.call('HSET', key(r, 'refs'), unpack(some)) end
  for _, some in ipairs(portions(gone)) do
    for _, descriptor in ipairs(redis.call('HMGET', key(r, 'chunks'), unpack(some))) do
      if descriptor then discard(descriptor) end
    end
    redis.call('HDEL', key(r, 'refs'), unpack(some))
    redis.call('HDEL', key(r, 'chunks'), unpack(some))
  end
end

-- What a claim's answer says of its rows: weights, per field the row metas, then ids and descriptors of all chunks.
local function placement(r, rows, fields)
  local runs = runs_of(rows)
  local answer, seen, ids = {gather(key(r, 'weights'), runs, WEIGHT_BYTES)}, {}, {}
  for _, field in ipairs(fields) do
    local metas = gather(key(r, 'f:' .. field), runs, ROW_BYTES)
    local last
    for i = 1, #metas, ROW_BYTES do
      local id = string.sub(metas, i, i + ID_BYTES - 1)
      if id ~= last and not seen[id] then
        seen[id] = true
        ids[#ids + 1] = id
      end
      last = id
    end
    answer[#answer + 1] = metas
  end
  answer[#answer + 1] = table.concat(ids)
  for _, some in ipairs(portions(ids)) do
    for _, descriptor in ipairs(redis.call('HMGET', key(r, 'chunks'), unpack(some))) do answer[#answer + 1] = descriptor or '' end
  end
  return answer
end

local function count_done(r, task, number)
  if redis.call('HINCRBY', key(r, 'done'), task.name, number) == SHAPE.rows then
    redis.call('ZADD', 'q:finished:' .. task.name, r, r)
    wake(task.name)
    -- What is published frees capacity once those that are behind have consumed it.
    if task.kind == 'Training' and not task.publishes then wake('tickets') end
  end
end

-- Rebuilds states, lists and counts of one partition from its masks. `state_of(task, row, mask, old)` gives the letter.
local function rebuild(r, state_of)
  local mask = redis.call('GET', key(r, 'mask'))
  for _, task in ipairs(SHAPE.tasks) do
    local old, letters, listed, done = redis.call('GET', key(r, 's:' .. task.name)), {}, {}, 0
    for row = 0, SHAPE.rows - 1 do
      local letter = state_of(task, row, struct.unpack('<I4', mask, row * 4 + 1), string.sub(old, row + 1, row + 1))
      letters[row + 1] = letter
      if letter == 'r' then listed[#listed + 1] = row end
      if letter == 'd' then done = done + 1 end
    end
    redis.call('SET', key(r, 's:' .. task.name), table.concat(letters))
    redis.call('DEL', key(r, 'q:' .. task.name))
    redis.call('ZREM', 'q:ready:' .. task.name, r)
    redis.call('ZREM', 'q:finished:' .. task.name, r)
    enlist(r, task, listed)
    redis.call('HSET', key(r, 'done'), task.name, done)
    if done == SHAPE.rows then redis.call('ZADD', 'q:finished:' .. task.name, r, r) end
    wake(task.name)
  end
end

local function forward_state(task, mask, old)
  if task.writes == 0 then
    if old == 'd' then return 'd' end
  elseif covers(mask, task.writes) then
    return 'd'
  end
  return covers(mask, task.needs) and 'r' or 'u'
end
