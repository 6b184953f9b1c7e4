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

-- `first`: the first partition that is not done with. In one that is published and not done with, all rows of the task that
-- publishes are consumed: a group that lost what was generated is not generated anew, since that task trained on other rows.
local function lose_group(r, group, g, lost, first, report)
  local masks = group_masks(r, group)
  local bad, all = bad_rows(r, group, lost, masks)
  if all == 0 then return false end
  if bit.band(all, SHAPE.generated_bits) == 0 then
    if training.outlives_weights(r, group, bad) then
      report.restart = report.restart + 1
    else
      drop_from_group(r, group, masks, bad)
      report.recomputed = report.recomputed + 1
    end
  elseif r < first then
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

-- What was made of all rows together goes with what some of them lost.
function torn.lose(r, report)
  torn.drop(r, function(group, bad)
    local restarts = training.outlives_weights(r, group, bad)
    local what = restarts and 'restart' or 'recomputed'
    report[what] = report[what] + 1
    return not restarts
  end)
end

local function lose_partition(r, first, report)
  local lost, touched = lost_chunks(r, {}), false
  if next(lost) == nil then return end
  end_leases(function(lease) return lease.r == r end)
  for _, name in ipairs(redis.call('HKEYS', key(r, 'groups'))) do
    local g = load_group(r, tonumber(name))
    if g.state == 'p' then touched = lose_group(r, tonumber(name), g, lost, first, report) or touched end
  end
  if touched and r >= first then torn.lose(r, report) end
  if touched then settle(r) end
end

-- What the losses in these partitions mean: `head`, then groups recomputed, reissued, absent, and in training.
local function lose_partitions(partitions, head)
  local report, first = {recomputed = 0, absent = 0, reissued = 0, restart = 0}, training.first()
  for _, r in ipairs(partitions) do lose_partition(tonumber(r), first, report) end
  return {head, report.recomputed, report.reissued, report.absent, report.restart}
end

-- Storage unit, least generation: its generation rises, and what it held in earlier ones is lost.
admin_call('declare_lost', function(args)
  local generation = math.max(tonumber(redis.call('HGET', UNITS, args[1]) or '0') + 1, tonumber(args[2]))
  redis.call('HSET', UNITS, args[1], generation)
  partials.lose()
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
admin_call('declare_missing', function(args)
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
admin_call('forget_missed', function(args)
  redis.call('SREM', MISSED, args[1])
  return {}, true
end)

-- A page of garbage, of so many lines and partitions at most. Units that are away: their lists stay.
-- Gives (unit, descriptors of chunks that nothing refers to any more)... and (partition that is done with, (chunk id,
-- descriptor)...)...
read_call('garbage', function(args)
  local left, away, dead, retired = tonumber(args[1]), {}, {}, {}
  for i = 2, #args do away[args[i]] = true end
  for _, unit in ipairs(redis.call('HKEYS', UNITS)) do
    local lines = (left > 0 and not away[unit]) and redis.call('LRANGE', dead_on(unit), 0, left - 1) or {}
    if #lines > 0 then
      dead[#dead + 1] = unit
      dead[#dead + 1] = lines
      left = left - #lines
    end
  end
  for _, r in ipairs(left > 0 and redis.call('ZRANGE', GARBAGE, 0, left - 1) or {}) do
    if left <= 0 then break end
    local chunks = redis.call('HRANDFIELD', key(r, 'chunks'), left, 'WITHVALUES')
    retired[#retired + 1] = r
    retired[#retired + 1] = chunks
    left = left - #chunks / 2 - 1
  end
  return {dead, retired}
end)

-- Chunks of a partition that is done with: on units that are away they wait for these, the others are deleted.
local function forget_garbage(r, ids, away)
  if #ids == 0 then return end
  for _, descriptor in ipairs(redis.call('HMGET', key(r, 'chunks'), unpack(ids))) do
    if descriptor and away[descriptor_unit(descriptor)] then discard(descriptor) end
  end
  redis.call('HDEL', key(r, 'chunks'), unpack(ids))
  redis.call('HDEL', key(r, 'refs'), unpack(ids))
end

-- The bytes of a page are deleted: how many lists, (unit, number of descriptors from the front of its list)..., how many
-- units are away, these, (partition, how many chunk ids, these)... Gives how many partitions are gone with it.
admin_call('collected', function(args)
  local at, away, gone = 2, {}, 0
  for _ = 1, tonumber(args[1]) do
    redis.call('LPOP', dead_on(args[at]), args[at + 1])
    at = at + 2
  end
  for _ = 1, tonumber(args[at]) do
    at = at + 1
    away[args[at]] = true
  end
  at = at + 1
  while at <= #args do
    local r, last = args[at], at + 1 + tonumber(args[at + 1])
    forget_garbage(r, {unpack(args, at + 2, last)}, away)
    if redis.call('EXISTS', key(r, 'chunks')) == 0 then
      drop_partition(r)
      redis.call('ZREM', GARBAGE, r)
      gone = gone + 1
    end
    at = last + 1
  end
  return {gone}, true
end)
