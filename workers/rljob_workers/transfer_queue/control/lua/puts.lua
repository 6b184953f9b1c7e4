-- Puts of groups: all of a group's rows become part of the queue in one call, or none.

-- Whether a row's weights are alive, and whether it has a token that is too old for r; where groups are carried on, whether
-- all of its tokens are.
local function judge(r, packed)
  local oldest_lineage, oldest, newest_lineage, newest = struct.unpack('<i4i4i4i4', packed)
  local counts = SHAPE.carries and newest or oldest
  return {is_alive(oldest_lineage, oldest) and is_alive(newest_lineage, newest), r - counts <= SHAPE.staleness}
end

-- Whether a group of these rows can be trained in r: every row of it, or where groups are carried on some row; then whether
-- nothing but the age of all its tokens is against it. `judged`: verdicts so far. Most rows were made by the same weights.
local function can_be_trained(r, weights, judged)
  local some = false
  for i = 1, #weights, WEIGHT_BYTES do
    local packed = string.sub(weights, i, i + WEIGHT_BYTES - 1)
    judged[packed] = judged[packed] or judge(r, packed)
    local lives, fits = unpack(judged[packed])
    if not lives or not (fits or SHAPE.carries) then return false, false end
    some = some or fits
  end
  return some, not some
end

-- Reads {number of chunks, (id, descriptor)..., row metas} from args[at]; gives the field and where the next one begins.
local function read_field(args, at)
  local chunks, count = {}, tonumber(args[at])
  for i = 1, count do chunks[args[at + 2 * i - 1]] = args[at + 2 * i] end
  return {chunks = chunks, metas = args[at + 2 * count + 1]}, at + 2 * count + 2
end

local function descriptors_of(fields)
  local all = {}
  for _, field in pairs(fields) do
    for _, descriptor in pairs(field.chunks) do all[#all + 1] = descriptor end
  end
  return all
end

local function read_sections(args)
  local sections, at = {}, 2
  for i = 1, tonumber(args[1]) do
    local section = {r = tonumber(args[at]), tickets = args[at + 1], weights = args[at + 2], fields = {}, order = SHAPE.generated}
    at = at + 3
    if SHAPE.curriculum then section.scores, at = args[at], at + 1 end
    for _, name in ipairs(SHAPE.generated) do section.fields[name], at = read_field(args, at) end
    require_units(descriptors_of(section.fields))
    sections[i] = section
  end
  return sections
end

-- The group of the ticket has its rows now; false where they cannot be trained, and it is generated again.
local function admit_group(t, weights, judged)
  partials.forget(t.prompt)
  local g = load_group(t.r, t.group)
  local fits, is_old = can_be_trained(t.r, weights, judged)
  local is_early = t.r - SHAPE.staleness > meta_number('published')
  if is_old and not is_early and g.late == 2 then
    fits = true -- without a token that is learnt from: else what is scored slowly had no end
  elseif is_old then
    g.late = is_early and math.max(g.late, 1) or 2
  end
  if not fits then
    save_group(t.r, t.group, g)
    return_ticket(t)
    return false
  end
  g.state, g.ticket = 'p', 0
  save_group(t.r, t.group, g)
  forget_ticket(t)
  redis.call('HDEL', KILLS, t.prompt)
  return true
end

-- Adds the rows of group i of the section; groups that follow each other make one run.
local function add_run(runs, group, i)
  local n, last = SHAPE.samples, runs[#runs]
  if last and last[1] + last[2] == group * n and last[3] + last[2] == i * n + 1 then
    last[2] = last[2] + n
  else
    runs[#runs + 1] = {group * n, n, i * n + 1}
  end
end

-- Gives the place of each group, partition and number in it; -1 for what was refused. Where groups swap, a section has one
-- group, and its partition is found now: its bytes are stored by then.
local function commit_section(owner, section)
  local n, places, runs, judged, refused = SHAPE.samples, {}, {}, {}, false
  for i = 0, #section.tickets / 4 - 1 do
    local t = load_ticket(struct.unpack('<I4', section.tickets, i * 4 + 1))
    local weights = string.sub(section.weights, i * n * WEIGHT_BYTES + 1, (i + 1) * n * WEIGHT_BYTES)
    local is_held = t and t.owner == owner
    if is_held and SHAPE.swaps then
      swap.to_the_front(t)
      section.r = t.r
    end
    if is_held and t.r == section.r and admit_group(t, weights, judged) then
      if section.scores then curriculum.count(t.prompt, string.sub(section.scores, i * 16 + 1, (i + 1) * 16)) end
      places[i + 1] = struct.pack('<i4i4', t.r, t.group)
      add_run(runs, t.group, i)
    else
      places[i + 1] = struct.pack('<i4i4', -1, -1)
      refused = true
    end
  end
  scatter(key(section.r, 'weights'), runs, WEIGHT_BYTES, section.weights)
  for name, field in pairs(section.fields) do
    scatter(key(section.r, 'f:' .. name), runs, ROW_BYTES, field.metas)
    local counts = refused and {} or count_all(field.chunks)
    if refused then
      for _, run in ipairs(runs) do
        count_refs(counts, string.sub(field.metas, (run[3] - 1) * ROW_BYTES + 1, (run[3] + run[2] - 1) * ROW_BYTES))
      end
    end
    keep_chunks(section.r, field.chunks, counts)
  end
  raise_bits(section.r, runs, SHAPE.generated_bits)
  return table.concat(places)
end

rank_call('put_groups', function(args, owner)
  local places = {}
  for i, section in ipairs(read_sections(args)) do places[i] = commit_section(owner, section) end
  wake('tickets')
  return {table.concat(places)}, true
end)
