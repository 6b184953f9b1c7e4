-- Puts of groups: all of a group's rows become part of the queue in one call, or none.

local function weight_fits(r, packed)
  local oldest_lineage, oldest, newest_lineage, newest = struct.unpack('<i4i4i4i4', packed)
  return r - oldest <= SHAPE.staleness and is_alive(oldest_lineage, oldest) and is_alive(newest_lineage, newest)
end

-- `judged`: verdicts so far. Most rows of a put were made by the same weights.
local function weights_fit(r, weights, judged)
  for i = 1, #weights, WEIGHT_BYTES do
    local packed = string.sub(weights, i, i + WEIGHT_BYTES - 1)
    if judged[packed] == nil then judged[packed] = weight_fits(r, packed) end
    if not judged[packed] then return false end
  end
  return true
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
    local section = {r = tonumber(args[at]), groups = args[at + 1], weights = args[at + 2], fields = {}, order = SHAPE.generated}
    at = at + 3
    for _, name in ipairs(SHAPE.generated) do section.fields[name], at = read_field(args, at) end
    require_units(descriptors_of(section.fields))
    sections[i] = section
  end
  return sections
end

local function admit_group(owner, section, id, group, weights, judged)
  local t = load_ticket(id)
  if not t or t.owner ~= owner or t.r ~= section.r or t.group ~= group then return false end
  if not weights_fit(section.r, weights, judged) then
    return_ticket(t)
    return false
  end
  local g = load_group(section.r, group)
  g.state, g.ticket = 'p', 0
  save_group(section.r, group, g)
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

local function commit_section(owner, section)
  local n, verdicts, runs, judged, refused = SHAPE.samples, {}, {}, {}, false
  for i = 0, #section.groups / 8 - 1 do
    local id, group = struct.unpack('<I4I4', section.groups, i * 8 + 1)
    local weights = string.sub(section.weights, i * n * WEIGHT_BYTES + 1, (i + 1) * n * WEIGHT_BYTES)
    local admitted = admit_group(owner, section, id, group, weights, judged)
    verdicts[i + 1] = admitted and '1' or '0'
    if admitted then add_run(runs, group, i) else refused = true end
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
  return table.concat(verdicts)
end

rank_call('put_groups', function(args, owner)
  local verdicts = {}
  for i, section in ipairs(read_sections(args)) do verdicts[i] = commit_section(owner, section) end
  wake('tickets')
  return {table.concat(verdicts)}, true
end)
