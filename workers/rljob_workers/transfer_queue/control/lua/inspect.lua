-- What people look at while the job runs. Changes nothing; each call is bounded by the rows or leases that it is asked for.

do -- its names are its own: a library has room for 200

local LEASES_AT_ONCE = 1000

-- Of the tickets in work; of the table, since a library has room for 200 local names.
function work.oldest_ms()
  local now, oldest = now_ms(), 0
  for _, packed in ipairs(redis.call('HVALS', TICKETS)) do oldest = math.max(oldest, now - cmsgpack.unpack(packed)[8]) end
  return oldest
end

-- Where the queue is, what keeps tickets back, who has some, what went for room, the partitions, the lives and the units.
read_call('inspect', function()
  local lives, holders, num_dead = redis.call('HGETALL', LIVE), {}, 0
  for i = 1, #lives, 2 do
    local held = redis.call('SCARD', tickets_of(lives[i]))
    if held > 0 then
      holders[#holders + 1] = lives[i + 1]
      holders[#holders + 1] = held
    end
  end
  for _, unit in ipairs(redis.call('HKEYS', UNITS)) do num_dead = num_dead + redis.call('LLEN', dead_on(unit)) end
  return {
    meta_number('epoch'), meta_number('lineage'), meta_number('seq'), meta_number('published'),
    tonumber(meta('recorded') or -1), groups_issued(), SHAPE.capacity, withheld_now() or '',
    meta('draining') or '', meta('drained_until') or '', redis.call('HLEN', TICKETS), redis.call('ZCARD', AGAIN),
    num_dead, redis.call('ZCARD', GARBAGE), meta_number('dropped_retained'), meta_number('dropped_unclaimed'),
    redis.call('ZRANGE', PARTITIONS, 0, -1), holders, redis.call('HGETALL', UNITS), redis.call('HGETALL', LOST_CHUNKS),
    work.oldest_ms(), meta_number('swaps'),
  }
end)

-- By runs, since rows next to each other are mostly in one state.
local function count(states, letter)
  if not string.find(states, letter, 1, true) then return 0 end
  local others = string.gsub(states, letter .. '+', '')
  return #states - #others
end

-- Partition, first group, number of groups: group states (u: never issued), then for each task unready, ready, claimed
-- and done rows of these groups, and the number of training batches of the whole partition.
read_call('inspect_groups', function(args)
  local r, first, last = args[1], tonumber(args[2]), tonumber(args[2]) + tonumber(args[3]) - 1
  local states, answer = {}, {}
  for from = first, last, 1000 do
    local names = {}
    for group = from, math.min(from + 999, last) do names[#names + 1] = group end
    for _, packed in ipairs(redis.call('HMGET', key(r, 'groups'), unpack(names))) do
      states[#states + 1] = packed and group_state(packed) or 'u'
    end
  end
  answer[1] = table.concat(states)
  for _, task in ipairs(SHAPE.tasks) do
    local letters = redis.call('GETRANGE', key(r, 's:' .. task.name), first * SHAPE.samples, (last + 1) * SHAPE.samples - 1)
    for _, letter in ipairs({'u', 'r', 'c', 'd'}) do answer[#answer + 1] = count(letters, letter) end
    answer[#answer + 1] = redis.call('HLEN', key(r, 'b:' .. task.name))
  end
  return answer
end)

-- Lease, task, partition, life, rows, ms since its claim, ms until it ends; those that end first come first.
read_call('inspect_leases', function()
  local answer, now = {}, now_ms()
  local listed = redis.call('ZRANGE', LEASES, 0, LEASES_AT_ONCE - 1, 'WITHSCORES')
  for i = 1, #listed, 2 do
    local packed = redis.call('HGET', LEASE, listed[i])
    if packed then
      local l = cmsgpack.unpack(packed)
      answer[#answer + 1] = listed[i]
      answer[#answer + 1] = l[1]
      answer[#answer + 1] = tonumber(l[2])
      answer[#answer + 1] = redis.call('HGET', LIVE, l[3]) or ''
      answer[#answer + 1] = #l[4] / 4
      answer[#answer + 1] = math.max(now - l[5], 0)
      answer[#answer + 1] = tonumber(listed[i + 1]) - now
    end
  end
  return answer
end)

-- Up to `limit` rows from `first` on; with a task, those that it has in state `letter`.
local function rows_to_show(r, first, limit, task, letter)
  local rows = {}
  if task == '' then
    for row = first, math.min(first + limit, SHAPE.rows) - 1 do rows[#rows + 1] = row end
    return rows
  end
  local states = redis.call('GET', key(r, 's:' .. task)) or ''
  local at = string.find(states, letter, first + 1, true)
  while at and #rows < limit do
    rows[#rows + 1] = at - 1
    at = string.find(states, letter, at + 1, true)
  end
  return rows
end

-- As `gather`; what was never written is zero.
local function gather_padded(name, runs, width)
  local parts = {}
  for i, run in ipairs(runs) do
    local found = redis.call('GETRANGE', name, run[1] * width, (run[1] + run[2]) * width - 1)
    parts[i] = found .. string.rep('\0', run[2] * width - #found)
  end
  return table.concat(parts)
end

-- Partition, first row, limit, task and state letter ('' for any), field ('' for none). Gives rows, masks, weights,
-- group states, the states of each task, the places in each field, then ids and descriptors of the field's chunks.
read_call('inspect_rows', function(args)
  local r, field = args[1], args[6]
  local rows = rows_to_show(r, tonumber(args[2]), tonumber(args[3]), args[4], args[5])
  if #rows == 0 then return {} end
  local runs, groups = runs_of(rows), {}
  for i, row in ipairs(rows) do
    local packed = redis.call('HGET', key(r, 'groups'), math.floor(row / SHAPE.samples))
    groups[i] = packed and group_state(packed) or 'u'
  end
  local answer = {pack_rows(rows), gather_padded(key(r, 'mask'), runs, 4), gather_padded(key(r, 'weights'), runs, WEIGHT_BYTES),
                  table.concat(groups)}
  for _, task in ipairs(SHAPE.tasks) do answer[#answer + 1] = gather_padded(key(r, 's:' .. task.name), runs, 1) end
  for _, name in ipairs(SHAPE.fields) do answer[#answer + 1] = gather_padded(key(r, 'f:' .. name), runs, ROW_BYTES) end
  if field == '' then return answer end
  local metas, seen = gather_padded(key(r, 'f:' .. field), runs, ROW_BYTES), {}
  for i = 1, #metas, ROW_BYTES do
    local id = string.sub(metas, i, i + ID_BYTES - 1)
    local descriptor = not seen[id] and redis.call('HGET', key(r, 'chunks'), id)
    seen[id] = true
    if descriptor then
      answer[#answer + 1] = id
      answer[#answer + 1] = descriptor
    end
  end
  return answer
end)

end
