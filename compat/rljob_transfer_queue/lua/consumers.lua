-- Consumers: a task that asks for certain fields, in units of `size` rows (1, or whole groups by their place).
-- `consumers` of a partition: id -> {task, size, fields...}; `asked`: the same question -> id. A consumer has `r:ID` (rows
-- that are ready and not consumed), for groups also `w:ID` (groups that are ready as a whole), and in `n:ID` the number of
-- its ready units and the place that none lies before. So a claim looks at no more than what it takes.

local function load_consumer(p, id)
  local kept = cmsgpack.unpack(redis.call('HGET', key(p, 'consumers'), id))
  return {id = id, task = kept[1], size = kept[2], fields = kept[3]}
end

local function consumers_of(p)
  local consumers, all = {}, redis.call('HGETALL', key(p, 'consumers'))
  for i = 1, #all, 2 do
    local kept = cmsgpack.unpack(all[i + 1])
    consumers[#consumers + 1] = {id = all[i], task = kept[1], size = kept[2], fields = kept[3]}
  end
  return consumers
end

local function units_key(p, c) return key(p, (c.size == 1 and 'r:' or 'w:') .. c.id) end

local function add_ready(p, c, count, lowest)
  if count == 0 then return end
  local name = key(p, 'n:' .. c.id)
  redis.call('HINCRBY', name, 'ready', count)
  if lowest < tonumber(redis.call('HGET', name, 'at')) then redis.call('HSET', name, 'at', lowest) end
end

-- Marks the groups of these places that are whole now; returns how many there are and the first of them.
local function mark_groups(p, c, first, count)
  local one, last = math.floor(first / c.size), math.floor((first + count - 1) / c.size)
  local rows, groups = range(key(p, 'r:' .. c.id), one * c.size, (last - one + 1) * c.size), {}
  local old, whole, fresh, lowest = range(key(p, 'w:' .. c.id), one, last - one + 1), string.rep('\1', c.size), 0, nil
  for i = 1, last - one + 1 do
    groups[i] = string.sub(rows, (i - 1) * c.size + 1, i * c.size) == whole and '\1' or '\0'
    if groups[i] == '\1' and string.byte(old, i) == 0 then
      fresh, lowest = fresh + 1, lowest or one + i - 1
    end
  end
  redis.call('SETRANGE', key(p, 'w:' .. c.id), one, table.concat(groups))
  return fresh, lowest
end

-- The places first, first + 1 ... whose flag is one are ready now and were not before.
local function enlist(p, c, first, flags)
  local total, lowest = 0, math.huge
  each_run(flags, function(from, count)
    local place = first + from - 1
    fill(key(p, 'r:' .. c.id), place, count, '\1')
    if c.size > 1 then count, place = mark_groups(p, c, place, count) end
    total = total + count
    lowest = math.min(lowest, place or math.huge)
  end)
  add_ready(p, c, total, lowest)
  return total > 0
end

-- Takes places off the list, ready or not.
local function unlist(p, c, runs)
  for _, run in ipairs(runs) do
    local rows = range(key(p, 'r:' .. c.id), run[1], run[2])
    if has_ones(rows) then
      local gone = count_ones(rows)
      fill(key(p, 'r:' .. c.id), run[1], run[2], '\0')
      if c.size > 1 then
        local one, last = math.floor(run[1] / c.size), math.floor((run[1] + run[2] - 1) / c.size)
        gone = count_ones(range(key(p, 'w:' .. c.id), one, last - one + 1))
        fill(key(p, 'w:' .. c.id), one, last - one + 1, '\0')
      end
      redis.call('HINCRBY', key(p, 'n:' .. c.id), 'ready', -gone)
    end
  end
end

-- Flags of places that are in use, not consumed by the task, and have all `fields`.
local function ready_flags(p, task, fields, first, count)
  local flags = (string.gsub(range(key(p, 'live'), first, count), '\2', '\0'))
  for _, field in ipairs(fields) do flags = both(flags, range(key(p, 'h:' .. field), first, count)) end
  return without(flags, range(key(p, 'c:' .. task), first, count))
end

local function enlist_all(p, c)
  redis.call('DEL', key(p, 'r:' .. c.id), key(p, 'w:' .. c.id))
  redis.call('HSET', key(p, 'n:' .. c.id), 'ready', 0, 'at', 0)
  -- Blocks of whole groups.
  local block, rows = math.ceil(4096 / c.size) * c.size, number_of(p, 'used')
  for first = 0, rows - 1, block do
    enlist(p, c, first, ready_flags(p, c.task, c.fields, first, math.min(block, rows - first)))
  end
end

-- A consumer that asks for the first time sees what is there.
local function consumer(p, task, size, fields)
  table.sort(fields)
  local question = cmsgpack.pack({task, size, fields})
  local id = redis.call('HGET', key(p, 'asked'), question)
  if id then return {id = id, task = task, size = size, fields = fields} end
  id = tostring(redis.call('HINCRBY', key(p, 'numbers'), 'consumers', 1))
  redis.call('HSET', key(p, 'asked'), question, id)
  redis.call('HSET', key(p, 'consumers'), id, question)
  local c = {id = id, task = task, size = size, fields = fields}
  enlist_all(p, c)
  return c
end

-- The next `want` units that are ready, lowest places first, as runs of units, and the place behind them.
local function next_units(p, c, want)
  local at, runs, found = tonumber(redis.call('HGET', key(p, 'n:' .. c.id), 'at')), {}, 0
  local window, first = math.max(want, 64), at
  while found < want do
    local flags = redis.call('GETRANGE', units_key(p, c), first, first + window - 1)
    if #flags == 0 then error({err = 'the ready list of a consumer is shorter than its count'}) end
    each_run(flags, function(from, count)
      count = math.min(count, want - found)
      if count > 0 then push_run(runs, first + from - 1, count) end
      found = found + count
    end)
    first, window = first + #flags, math.min(window * 4, 65536)
  end
  local last = runs[#runs]
  return runs, last[1] + last[2]
end

local function consume(p, task, runs)
  for _, run in ipairs(runs) do fill(key(p, 'c:' .. task), run[1], run[2], '\1') end
  redis.call('SADD', key(p, 'tasks'), task)
  for _, c in ipairs(consumers_of(p)) do
    if c.task == task then unlist(p, c, runs) end
  end
end

-- The places of units.
local function rows_of(units, size)
  local runs = {}
  for _, run in ipairs(units) do push_run(runs, run[1] * size, run[2] * size) end
  return runs
end

local function length_of(document)
  local fine, found = pcall(cjson.decode, document)
  return fine and type(found) == 'table' and tonumber(found.total_lengths) or 1
end

-- Deals groups to ranks: the longest first, each to the shortest rank that is not full. Returns runs of places per rank.
local function deal(p, units, size, ranks)
  local groups, shares = {}, {}
  for _, run in ipairs(units) do
    for group = run[1], run[1] + run[2] - 1 do
      local total = 0
      each_document(p, group * size, size, function(document) total = total + length_of(document) end)
      groups[#groups + 1] = {group, total}
    end
  end
  table.sort(groups, function(a, b) return a[2] > b[2] or (a[2] == b[2] and a[1] < b[1]) end)
  for rank = 1, ranks do shares[rank] = {total = 0, groups = {}} end
  for _, group in ipairs(groups) do
    local best
    for _, share in ipairs(shares) do
      if #share.groups < #groups / ranks and (not best or share.total < best.total) then best = share end
    end
    best.total = best.total + group[2]
    best.groups[#best.groups + 1] = group[1]
  end
  for rank, share in ipairs(shares) do
    table.sort(share.groups)
    local runs = {}
    for _, group in ipairs(share.groups) do push_run(runs, group * size, size) end
    shares[rank] = runs
  end
  return shares
end

local function still_live(p, runs)
  local left = {}
  for _, run in ipairs(runs) do
    each_run(range(key(p, 'live'), run[1], run[2]), function(first, count) push_run(left, run[1] + first - 1, count) end)
  end
  return left
end

local function batch_answer(p, runs, fields)
  local answer = placement(p, runs, fields)
  table.insert(answer, 1, 'B')
  return answer
end

-- partition, task, rows, rows of a group, rank and batch index ('' where every question is a new one), number of ranks that
-- the batch is dealt to (0: none), then the fields.
changing('claim', function(args)
  local p = partition_of(args[1])
  if not p then return {'N', 0} end
  local task, want, size, rank, index, ranks = args[2], tonumber(args[3]), tonumber(args[4]), args[5], args[6], tonumber(args[7])
  local fields, named = rest_of(args, 8), rank .. ':' .. index
  local batches = key(p, 'b:' .. task)
  local kept = rank ~= '' and redis.call('HGET', batches, named)
  if kept then return batch_answer(p, still_live(p, unpack_runs(kept)), fields), {p, kept} end
  local c = consumer(p, task, size, rest_of(args, 8))
  local units = want / size * math.max(ranks, 1)
  local ready = tonumber(redis.call('HGET', key(p, 'n:' .. c.id), 'ready'))
  if ready < units then return {'N', ready * size} end
  local taken, behind = next_units(p, c, units)
  local runs, shares = rows_of(taken, size), ranks > 0 and deal(p, taken, size, ranks) or {}
  redis.call('HSET', key(p, 'n:' .. c.id), 'at', behind)
  if ranks > 0 then
    for other, share in ipairs(shares) do
      redis.call('HSET', batches, (other - 1) .. ':' .. index, pack_runs(share))
      if tostring(other - 1) == rank then runs = share end
    end
  elseif rank ~= '' then
    redis.call('HSET', batches, named, pack_runs(runs))
  end
  consume(p, task, rows_of(taken, size))
  return batch_answer(p, runs, fields), {p, pack_runs(runs)}
end, function(record, args)
  if record[1] == 'N' then return record end
  return batch_answer(record[1], still_live(record[1], unpack_runs(record[2])), rest_of(args, 8))
end)

-- partition, task ('' for all)
changing('reset', function(args)
  local p = partition_of(args[1])
  if not p then return {0} end
  for _, task in ipairs(redis.call('SMEMBERS', key(p, 'tasks'))) do
    if args[2] == '' or args[2] == task then redis.call('DEL', key(p, 'c:' .. task), key(p, 'b:' .. task)) end
  end
  for _, c in ipairs(consumers_of(p)) do
    if args[2] == '' or args[2] == c.task then enlist_all(p, c) end
  end
  redis.call('PUBLISH', 'n:tq:' .. args[1], '1')
  return {1}
end)
