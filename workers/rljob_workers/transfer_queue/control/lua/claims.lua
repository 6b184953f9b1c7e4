-- Claims: leases of forward tasks, and the batches of training tasks.

local function load_lease(id)
  local packed = redis.call('HGET', LEASE, id)
  if not packed then return nil end
  local l = cmsgpack.unpack(packed)
  return {id = id, task = SHAPE.task[l[1]], r = l[2], owner = l[3], rows = unpack_rows(l[4])}
end

local function forget_lease(id)
  redis.call('HDEL', LEASE, id)
  redis.call('ZREM', LEASES, id)
end

-- Hands the rows of a lease back, to the front of the list.
local function end_lease(lease)
  forget_lease(lease.id)
  if redis.call('ZSCORE', PARTITIONS, lease.r) == false then return end
  set_state(lease.r, lease.task, runs_of(lease.rows), 'r')
  local entries = ready.entries_of(lease.task, lease.rows)
  for i = #entries, 1, -1 do redis.call('LPUSH', key(lease.r, 'q:' .. lease.task.name), entries[i]) end
  redis.call('ZADD', 'q:ready:' .. lease.task.name, lease.r, lease.r)
  wake(lease.task.name)
end

local function end_leases(wanted)
  for _, id in ipairs(redis.call('HKEYS', LEASE)) do
    local lease = load_lease(id)
    if lease and wanted(lease) then end_lease(lease) end
  end
end

-- At most so many leases are ended by one claim, so that a claim stays O(batch).
local EXPIRED_AT_ONCE = 8

local function end_expired(now)
  local expired = redis.call('ZRANGE', LEASES, '-inf', now, 'BYSCORE', 'LIMIT', 0, EXPIRED_AT_ONCE)
  for _, id in ipairs(expired) do
    local lease = load_lease(id)
    if lease then end_lease(lease) else redis.call('ZREM', LEASES, id) end
  end
  return #expired > 0
end

-- Ends leases that their claimer heard nothing of, by their ids from args[first] on; true if there are any. The call counts
-- as a change then, so that a claim of one of them that comes after it is refused.
local function end_unheard(args, first, owner)
  for i = first, #args do
    local lease = load_lease(args[i])
    if lease and lease.owner == owner then end_lease(lease) end
  end
  return #args >= first
end

-- Once its last entry was taken, a partition is offered no more.
local function withdraw_if_empty(r, task)
  if redis.call('EXISTS', key(r, 'q:' .. task.name)) == 0 then redis.call('ZREM', 'q:ready:' .. task.name, r) end
end

local function pop_rows(r, task, max_rows)
  local number = math.max(1, math.floor(max_rows / ready.span(task)))
  local entries = redis.call('LPOP', key(r, 'q:' .. task.name), number) or {}
  withdraw_if_empty(r, task)
  return ready.rows_of(task, entries)
end

-- Partitions below the recorded version are done for every task.
local function is_exhausted(task, first, last)
  first = math.max(first, meta_number('recorded'))
  return first > last or redis.call('ZCOUNT', 'q:finished:' .. task.name, first, last) == last - first + 1
end

local function batch_answer(r, task, rows, lease)
  local answer = placement(r, rows, task.need_fields)
  table.insert(answer, 1, pack_rows(rows))
  table.insert(answer, 1, r)
  table.insert(answer, 1, 'B')
  return answer
end

-- Task, first and last partition, most rows, lease, its ms, then leases of earlier claims that got no answer.
rank_call('claim', function(args, owner)
  local task, first, last = SHAPE.task[args[1]], tonumber(args[2]), tonumber(args[3])
  local now, unheard = now_ms(), end_unheard(args, 7, owner)
  local changed = end_expired(now) or unheard or nil
  local r = tonumber(redis.call('ZRANGE', 'q:ready:' .. task.name, first, last, 'BYSCORE', 'LIMIT', 0, 1)[1])
  if not r then return {is_exhausted(task, first, last) and 'E' or 'N'}, changed end
  local rows, id = pop_rows(r, task, tonumber(args[4])), args[5]
  set_state(r, task, runs_of(rows), 'c')
  redis.call('HSET', LEASE, id, cmsgpack.pack({task.name, r, owner, pack_rows(rows), now}))
  redis.call('ZADD', LEASES, now + tonumber(args[6]), id)
  return batch_answer(r, task, rows), {'B', id}
end, function(record, args)
  local lease = record[2] and load_lease(record[2])
  if not lease then return {'N'} end
  return batch_answer(lease.r, lease.task, lease.rows)
end)

rank_call('release', function(args, owner)
  local lease = load_lease(args[1])
  if not lease or lease.owner ~= owner then return {} end
  end_lease(lease)
  return {}, true
end)

local function stamp_fields(r, fields, runs)
  local bits = 0
  for name, field in pairs(fields) do
    scatter(key(r, 'f:' .. name), runs, ROW_BYTES, field.metas)
    keep_chunks(r, field.chunks, count_all(field.chunks))
    bits = bit.bor(bits, SHAPE.bit[name])
  end
  return bits
end

-- Results under a lease: lease, lineage and version that made them (0 and -1: none), then per field of `writes` its bytes.
rank_call('put', function(args, owner)
  local lease = load_lease(args[1])
  if not lease or lease.owner ~= owner then return {'L'} end
  if args[2] ~= '0' and not is_alive(args[2], tonumber(args[3])) then
    refuse('FENCED', 'v' .. args[3] .. '@' .. args[2] .. ' is dead: nothing made by it is taken')
  end
  local fields, at = {}, 4
  for _, name in ipairs(lease.task.write_fields) do fields[name], at = read_field(args, at) end
  require_units(descriptors_of(fields))
  local r, runs = lease.r, runs_of(lease.rows)
  forget_lease(lease.id)
  set_state(r, lease.task, runs, 'd')
  count_done(r, lease.task, #lease.rows)
  raise_bits(r, runs, stamp_fields(r, fields, runs))
  return {'P'}, true
end)

local function length_of(metas, i) return struct.unpack('<I4', metas, (i - 1) * ROW_BYTES + ID_BYTES + 5) end

-- What is dealt as one: a row, or with policy Group a group, with the length of its first needed field.
local function items_of(r, task, rows)
  local metas, items = gather(key(r, 'f:' .. task.need_fields[1]), runs_of(rows), ROW_BYTES), {}
  local step = task.policy == 'Group' and SHAPE.samples or 1
  for i = 1, #rows, step do
    local weight = 0
    for j = i, i + step - 1 do weight = weight + length_of(metas, j) end
    items[#items + 1] = {weight = weight, first = rows[i], step = step}
  end
  return items
end

-- The rows of all ranks, one rank behind the other. Fifo: in the order in which those of the step became ready.
local function deal(r, task, rows, size)
  if size == 1 or task.policy == 'Fifo' then return rows end
  local dealt = {}
  for _, set in ipairs(deal_evenly(items_of(r, task, rows), size)) do
    for _, item in ipairs(set.items) do
      for row = item.first, item.first + item.step - 1 do dealt[#dealt + 1] = row end
    end
  end
  return dealt
end

-- The rows of one rank in the packed rows of all.
local function share_of(packed, rank, size)
  local bytes = #packed / size
  local mine = unpack_rows(string.sub(packed, rank * bytes + 1, (rank + 1) * bytes))
  table.sort(mine)
  return mine
end

-- Rows that were claimed may miss a field that was lost meanwhile and is being made again.
local function all_cover(r, task, rows)
  for _, stretch in ipairs(stretches_of(gather(key(r, 'mask'), runs_of(rows), 4))) do
    if not covers(stretch[1], task.needs) then return false end
  end
  return true
end

local function sorted_runs(rows)
  local sorted = {}
  for i = 1, #rows do sorted[i] = rows[i] end
  table.sort(sorted)
  return runs_of(sorted)
end

-- The packed rows of all ranks; nil where there are too few yet.
local function training_batch(r, task, step, index, num_rows, size)
  local kept = redis.call('HGET', key(r, 'b:' .. task.name), index)
  if kept then return kept, nil end
  if ready.rows_of_step(r, task, step) < num_rows then return nil, nil end
  -- Read and dealt first, taken then: who fails in between has changed nothing.
  local entries = task.policy == 'Group' and num_rows / SHAPE.samples or num_rows
  local taken = ready.rows_of(task, ready.first(r, task, step, entries))
  local runs = sorted_runs(taken)
  local packed = pack_rows(deal(r, task, taken, size))
  ready.drop_first(r, task, step, entries)
  withdraw_if_empty(r, task)
  redis.call('HSET', key(r, 'b:' .. task.name), index, packed)
  set_state(r, task, runs, 'c')
  return packed, true
end

rank_call('claim_training', function(args)
  local task, r, index, num_rows = SHAPE.task[args[1]], tonumber(args[2]), args[3], tonumber(args[4])
  local rank, size = tonumber(args[5]), tonumber(args[6])
  if num_rows % ((task.policy == 'Group' and SHAPE.samples or 1) * size) ~= 0 then
    refuse('MISMATCH', num_rows .. ' rows cannot be dealt evenly to ' .. size .. ' ranks with policy ' .. task.policy)
  end
  local step = ready.step_of_slice(task, tonumber(index), num_rows)
  if not step then
    refuse('MISMATCH', 'batch ' .. index .. ' of ' .. num_rows .. ' rows would have rows of two optimizer steps of ' .. task.step_rows)
  end
  if redis.call('HEXISTS', key(r, 'b:' .. task.name), index) == 0 and is_exhausted(task, r, r) then return {'E'} end
  local packed, changed = training_batch(r, task, step, index, num_rows, size)
  if not packed then return {'N', ready.rows_of_step(r, task, step)} end
  if #packed ~= 4 * num_rows then
    refuse('MISMATCH', 'batch ' .. index .. ' of train_' .. r .. ' was claimed with ' .. #packed / 4 .. ' rows, not ' .. num_rows)
  end
  local mine = share_of(packed, rank, size)
  if not all_cover(r, task, mine) then return {'N', 0}, changed and {'N', 0} end
  return batch_answer(r, task, mine), changed and {'B', pack_rows(mine)}
end, function(record, args)
  if record[1] ~= 'B' then return record end
  return batch_answer(tonumber(args[2]), SHAPE.task[args[1]], unpack_rows(record[2]))
end)

rank_call('commit_training', function(args)
  local task, r = SHAPE.task[args[1]], tonumber(args[2])
  for i = 3, #args do
    if redis.call('HEXISTS', key(r, 'b:' .. task.name), args[i]) == 0 then
      refuse('MISMATCH', 'batch ' .. args[i] .. ' of train_' .. r .. ' was never claimed for ' .. task.name)
    end
  end
  for i = 3, #args do
    local rows = unpack_rows(redis.call('HGET', key(r, 'b:' .. task.name), args[i]))
    table.sort(rows)
    local runs, fresh = runs_of(rows), 0
    for _, run in ipairs(runs) do
      local states = redis.call('GETRANGE', key(r, 's:' .. task.name), run[1], run[1] + run[2] - 1)
      local _, claimed = string.gsub(states, 'c', 'c')
      fresh = fresh + claimed
    end
    set_state(r, task, runs, 'd')
    count_done(r, task, fresh)
  end
  return {}, true
end)
