-- Rows whose bytes are gone, and garbage.

local function training_touched(r, group)
  for _, task in ipairs(SHAPE.tasks) do
    if task.kind == 'Training' then
      local first = group * SHAPE.samples
      local states = redis.call('GETRANGE', key(r, 's:' .. task.name), first, first + SHAPE.samples - 1)
      if string.find(states, '[cd]') then return true end
    end
  end
  return false
end

-- A group that was put goes; its place keeps reservation, attempt and prompt.
local function reissue_group(r, group, g)
  drop_group(r, group)
  wait_again(r, group, g)
end

local function mark_absent(r, group, g)
  drop_group(r, group)
  g.state = 'a'
  save_group(r, group, g)
end

-- After fields went: forward states follow the masks, training keeps what it claimed or consumed.
local function settle(r)
  local absent = {}
  for _, name in ipairs(redis.call('HKEYS', key(r, 'groups'))) do
    if load_group(r, tonumber(name)).state == 'a' then absent[tonumber(name)] = true end
  end
  rebuild(r, function(task, row, mask, old)
    if absent[math.floor(row / SHAPE.samples)] then return 'd' end
    if task.kind == 'Training' then
      if old == 'c' or old == 'd' then return old end
      return covers(mask, task.needs) and 'r' or 'u'
    end
    return forward_state(task, mask, old)
  end)
end

local function lose_group(r, group, g, lost, published, report)
  local masks = group_masks(r, group)
  local bad, all = bad_rows(r, group, lost, masks)
  if all == 0 then return false end
  if bit.band(all, SHAPE.generated_bits) == 0 then
    drop_from_group(r, group, masks, bad)
    report.recomputed = report.recomputed + 1
  elseif r < published then
    mark_absent(r, group, g)
    report.absent = report.absent + 1
  elseif training_touched(r, group) then
    report.restart = report.restart + 1
  else
    reissue_group(r, group, g)
    report.reissued = report.reissued + 1
  end
  return true
end

local function lose_partition(r, published, report)
  local lost, touched = lost_chunks(r, {}), false
  if next(lost) == nil then return end
  end_leases(function(lease) return lease.r == r end)
  for _, name in ipairs(redis.call('HKEYS', key(r, 'groups'))) do
    local g = load_group(r, tonumber(name))
    if g.state == 'p' then touched = lose_group(r, tonumber(name), g, lost, published, report) or touched end
  end
  if touched then settle(r) end
end

-- What the losses in these partitions mean: `first`, then groups recomputed, reissued, absent, and in training.
local function lose_partitions(partitions, first)
  local report, published = {recomputed = 0, absent = 0, reissued = 0, restart = 0}, meta_number('published')
  for _, r in ipairs(partitions) do lose_partition(tonumber(r), published, report) end
  return {first, report.recomputed, report.reissued, report.absent, report.restart}
end

-- Storage unit, least generation: its generation rises, and what it held in earlier ones is lost.
steward_call('declare_lost', function(args)
  local generation = math.max(tonumber(redis.call('HGET', UNITS, args[1]) or '0') + 1, tonumber(args[2]))
  redis.call('HSET', UNITS, args[1], generation)
  return lose_partitions(redis.call('ZRANGE', PARTITIONS, 0, -1), generation), true
end, true)

-- Partition, storage units that have kept their marks and on which a reader did not find chunks that it was told of.
rank_call('report_missed', function(args)
  local r, changed = args[1], nil
  if redis.call('ZSCORE', PARTITIONS, r) == false then return {} end
  for i = 2, #args do
    if redis.call('SADD', MISSED, r .. ':' .. args[i]) == 1 then changed = true end
  end
  return {}, changed
end)

-- No unit was ever marked with this generation: a chunk of it is lost, like one of a unit that came back empty.
local NO_GENERATION = 0

-- Partition, storage unit, ids of chunks that it no longer has. Gives how many it has lost so in all, and the report.
steward_call('declare_missing', function(args)
  local r, unit = args[1], args[2]
  for i = 3, #args do
    local descriptor = redis.call('HGET', key(r, 'chunks'), args[i])
    if chunk_is_here(descriptor) then
      local lost = string.gsub(descriptor, '^(%d+)|%d+|', '%1|' .. NO_GENERATION .. '|')
      redis.call('HSET', key(r, 'chunks'), args[i], lost)
      redis.call('HINCRBY', LOST_CHUNKS, unit, 1)
    end
  end
  local known = redis.call('ZSCORE', PARTITIONS, r) ~= false
  return lose_partitions(known and {r} or {}, tonumber(redis.call('HGET', LOST_CHUNKS, unit) or '0')), true
end)

-- What a reader reported was looked after, and told.
steward_call('forget_missed', function(args)
  redis.call('SREM', MISSED, args[1])
  return {}, true
end)

-- Up to so many descriptors of chunks that nothing refers to any more, and the partitions that are done with.
read_call('garbage', function(args)
  local answer = {redis.call('LRANGE', DEAD, 0, tonumber(args[1]) - 1), {}}
  for _, r in ipairs(redis.call('ZRANGE', GARBAGE, 0, -1)) do
    answer[2][#answer[2] + 1] = tonumber(r)
    answer[#answer + 1] = redis.call('HVALS', key(r, 'chunks'))
  end
  return answer
end)

-- Their bytes are deleted: number of dead chunks from the front of the list, then partitions.
steward_call('collected', function(args)
  if tonumber(args[1]) > 0 then redis.call('LPOP', DEAD, args[1]) end
  for i = 2, #args do
    drop_partition(args[i])
    redis.call('ZREM', GARBAGE, args[i])
  end
  return {}, true
end)
