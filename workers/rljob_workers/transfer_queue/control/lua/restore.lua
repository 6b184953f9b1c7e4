-- Restore: what stands of the rows when an epoch begins at version c, and the script that opens the epoch.

local function return_draws(g)
  if g.prompt >= 0 then redis.call('ZADD', FRONT, g.prompt, g.prompt) end
  for _, prompt in ipairs(g.rejected) do redis.call('ZADD', FRONT, prompt, prompt) end
end

-- What one field says of a group's rows: 28 bytes each.
local function group_metas(r, group, name)
  return redis.call('GETRANGE', key(r, 'f:' .. name), group * SHAPE.samples * ROW_BYTES, (group + 1) * SHAPE.samples * ROW_BYTES - 1)
end

-- `dropped` and everything that is derived from it, or was written with it, over one round of tasks in the order of the
-- pipeline until it is stable.
local function with_dependants(dropped)
  if dropped == 0 then return 0 end
  local before
  repeat
    before = dropped
    for _, task in ipairs(SHAPE.tasks) do
      if bit.band(bit.bor(task.needs, task.writes), dropped) ~= 0 then dropped = bit.bor(dropped, task.writes) end
    end
  until dropped == before
  return dropped
end

-- Chunk ids of partition r whose bytes are gone: of an older generation of their unit, or named in `missing`.
local function lost_chunks(r, missing)
  local all, lost = redis.call('HGETALL', key(r, 'chunks')), {}
  for i = 1, #all, 2 do
    if not chunk_is_here(all[i + 1]) or missing[all[i]] then lost[all[i]] = true end
  end
  return lost
end

-- A field that a Group task wrote goes for the whole group: its rows are made together.
local function group_written()
  local bits = 0
  for _, task in ipairs(SHAPE.tasks) do
    if task.policy == 'Group' then bits = bit.bor(bits, task.writes) end
  end
  return bits
end

-- Whether a producing weight (lineage 0: none) is alive. A group has few of them and many rows: each is looked up once.
local function maker_judge()
  local known = {}
  return function(packed)
    if known[packed] == nil then
      local lineage, version = struct.unpack('<i4i4', packed)
      known[packed] = lineage <= 0 or is_alive(lineage, version)
    end
    return known[packed]
  end
end

-- Per row of the group: the fields that must go, since their bytes are lost or a dead version made them.
local function bad_fields(r, group, lost, masks)
  local bad, stands = {}, maker_judge()
  for j = 0, SHAPE.samples - 1 do bad[j] = 0 end
  for _, name in ipairs(SHAPE.fields) do
    local field, metas = SHAPE.bit[name], group_metas(r, group, name)
    for j = 0, SHAPE.samples - 1 do
      local at = j * ROW_BYTES
      if bit.band(masks[j], field) ~= 0 and
        (lost[string.sub(metas, at + 1, at + ID_BYTES)] or not stands(string.sub(metas, at + 21, at + ROW_BYTES))) then
        bad[j] = bit.bor(bad[j], field)
      end
    end
  end
  return bad
end

-- Per row of the group: what must go, with dependants. Gives the list and the union.
local function bad_rows(r, group, lost, masks)
  local bad, all = bad_fields(r, group, lost, masks), 0
  for j = 0, SHAPE.samples - 1 do
    bad[j] = with_dependants(bad[j])
    all = bit.bor(all, bad[j])
  end
  local shared = bit.band(all, group_written())
  for j = 0, SHAPE.samples - 1 do bad[j] = with_dependants(bit.bor(bad[j], shared)) end
  return bad, all
end

local function group_masks(r, group)
  local packed, masks = redis.call('GETRANGE', key(r, 'mask'), group * SHAPE.samples * 4, (group + 1) * SHAPE.samples * 4 - 1), {}
  for j = 0, SHAPE.samples - 1 do masks[j] = struct.unpack('<I4', packed, j * 4 + 1) end
  return masks
end

-- Takes the bits of `bad` from the group's rows and counts their chunks down.
local function drop_from_group(r, group, masks, bad)
  local counts, packed, dropped = {}, {}, 0
  for j = 0, SHAPE.samples - 1 do
    packed[j + 1] = struct.pack('<I4', bit.band(masks[j], bit.bnot(bad[j])))
    dropped = bit.bor(dropped, bit.band(masks[j], bad[j]))
  end
  for _, name in ipairs(SHAPE.fields) do
    local field = SHAPE.bit[name]
    if bit.band(dropped, field) ~= 0 then
      local metas = group_metas(r, group, name)
      for j = 0, SHAPE.samples - 1 do
        if bit.band(masks[j], bad[j], field) ~= 0 then
          local id = string.sub(metas, j * ROW_BYTES + 1, j * ROW_BYTES + ID_BYTES)
          counts[id] = (counts[id] or 0) + 1
        end
      end
    end
  end
  redis.call('SETRANGE', key(r, 'mask'), group * SHAPE.samples * 4, table.concat(packed))
  release_chunks(r, counts)
end

local function drop_group(r, group)
  local masks, bad = group_masks(r, group), {}
  for j = 0, SHAPE.samples - 1 do bad[j] = masks[j] end
  drop_from_group(r, group, masks, bad)
end

-- What Partition tasks wrote of some rows of a partition that others lack. Its rows are made together, so that they have it
-- all or none.
local torn = {}

do

-- Its fields, with dependants.
local function torn_fields(r)
  local stretches, fields = stretches_of(redis.call('GET', key(r, 'mask'))), 0
  for _, task in ipairs(SHAPE.tasks) do
    if task.policy == 'Partition' then
      local have = 0
      for _, stretch in ipairs(stretches) do
        if bit.band(stretch[1], task.writes) ~= 0 then have = have + stretch[3] end
      end
      if have > 0 and have < SHAPE.rows then fields = bit.bor(fields, task.writes) end
    end
  end
  return with_dependants(fields)
end

-- Takes fields of which other rows were lost from the groups that still have them. `may_lose(group, bad)`: asked before each.
function torn.drop(r, may_lose)
  local fields = torn_fields(r)
  if fields == 0 then return end
  for _, name in ipairs(redis.call('HKEYS', key(r, 'groups'))) do
    local group = tonumber(name)
    local masks, bad, has = group_masks(r, group), {}, false
    for j = 0, SHAPE.samples - 1 do
      bad[j] = fields
      has = has or bit.band(masks[j], fields) ~= 0
    end
    if has and may_lose(group, bad) then drop_from_group(r, group, masks, bad) end
  end
end

end

-- The bound is that of this shape, which may be another than that of the put.
local function tokens_stand(r, group, version)
  local n = SHAPE.samples
  local weights = redis.call('GETRANGE', key(r, 'weights'), group * n * WEIGHT_BYTES, (group + 1) * n * WEIGHT_BYTES - 1)
  return weights_stand(weights, version) and (can_be_trained(r, weights, {}))
end

-- Keeps or drops one group in a restore; true: kept.
local function restore_group(r, group, g, version, lost)
  if g.state ~= 'p' or not tokens_stand(r, group, version) then return false end
  local masks = group_masks(r, group)
  local bad, all = bad_rows(r, group, lost, masks)
  if bit.band(all, SHAPE.generated_bits) ~= 0 then return false end
  if all ~= 0 then drop_from_group(r, group, masks, bad) end
  return true
end

local function restore_partition(r, version, missing)
  local kept, dropped, lost = 0, 0, lost_chunks(r, missing)
  for _, name in ipairs(redis.call('HKEYS', key(r, 'groups'))) do
    local group = tonumber(name)
    local g = load_group(r, group)
    if restore_group(r, group, g, version, lost) then
      kept = kept + 1
    else
      if g.state == 'p' or g.state == 'a' then
        dropped = dropped + 1
        drop_group(r, group)
      end
      return_draws(g)
      redis.call('HDEL', key(r, 'groups'), name)
      redis.call('ZADD', OPEN, group_place(r, group), group_place(r, group))
    end
  end
  torn.drop(r, function() return true end)
  for _, task in ipairs(SHAPE.tasks) do redis.call('DEL', key(r, 'b:' .. task.name)) end
  rebuild(r, function(task, _, mask, old)
    if task.kind == 'Training' then return covers(mask, task.needs) and 'r' or 'u' end
    return forward_state(task, mask, old)
  end)
  return kept, dropped
end

-- From here on no rank's call is admitted, nor answered again.
local function forget_ranks()
  redis.call('DEL', LIVE, RANKS, LEASE, LEASES)
  local admin = meta('admin')
  for _, client in ipairs(redis.call('HKEYS', CALLS)) do
    if client ~= admin then redis.call('HDEL', CALLS, client) end
  end
end

-- Fences every life of the old epoch.
local function fence()
  for _, incarnation in ipairs(redis.call('HKEYS', LIVE)) do work.forget(incarnation) end
  redis.call('DEL', TICKETS, AGAIN)
  swap.forget_all()
  forget_ranks()
end

-- The lineages that the new one comes from: bounds become min(bound, c).
local function open_lineage(lineage, version, ancestry)
  if ancestry then
    redis.call('DEL', ALIVE)
    for name, bound in pairs(ancestry) do redis.call('HSET', ALIVE, name, bound) end
  end
  local bounds = redis.call('HGETALL', ALIVE)
  for i = 1, #bounds, 2 do
    local bound = tonumber(bounds[i + 1])
    if bound == -1 or bound > version then redis.call('HSET', ALIVE, bounds[i], version) end
  end
  redis.call('HSET', ALIVE, lineage, -1)
  redis.call('HSET', META, 'lineage', lineage)
end

local function forget_rows()
  for _, where in ipairs({PARTITIONS, GARBAGE}) do
    for _, r in ipairs(redis.call('ZRANGE', where, 0, -1)) do drop_partition(r) end
  end
  redis.call('DEL', OPEN, FRONT, GARBAGE)
  partials.forget_all()
end

-- The table that the checkpoint carries: cursor, returned prompts, draws of partitions that are not done, kill counts.
local function adopt_table(saved, rates, version)
  forget_rows()
  redis.call('HSET', META, 'cursor', saved.cursor, 'next', version * SHAPE.batch)
  for _, prompt in ipairs(saved.front) do redis.call('ZADD', FRONT, prompt, prompt) end
  for _, draw in ipairs(saved.draws) do
    if draw[1] >= version * SHAPE.batch then
      for i = 2, #draw do redis.call('ZADD', FRONT, draw[i], draw[i]) end
    end
  end
  for prompt, kills in pairs(saved.kills) do redis.call('HSETNX', KILLS, prompt, kills) end
  curriculum.adopt(saved.curriculum, rates)
end

local function decoded_table(text, epoch)
  local is_json, saved = pcall(cjson.decode, text)
  if is_json and type(saved) == 'table' and type(saved.cursor) == 'number' and type(saved.front) == 'table'
    and type(saved.draws) == 'table' and type(saved.kills) == 'table' and curriculum.is_table(saved.curriculum) then return saved end
  refuse('MISMATCH', 'the ticket table of the checkpoint ' .. (text == '' and 'is missing' or is_json and 'is none' or 'is no JSON')
    .. ': epoch ' .. epoch .. ' cannot be restored from it. Put the tickets.json of its folder back')
end

-- Takes over a record that is newer than what this server knows (its tail, or all of it, was lost), or older where what
-- it knows is one of the folders in `left` (a JSON list), which are damaged: rows of the partitions in between may be gone,
-- so that all are drawn again by the older one's table.
local function adopt_record(text, tickets, rates, left)
  local record, known, goes_back = cjson.decode(text), meta('record'), false
  local version, ahead = record.id.version, meta_number('published')
  local folder = known and cjson.decode(known).folder
  for _, one in ipairs(cjson.decode(left)) do goes_back = goes_back or one == folder end
  if known and meta_number('recorded') >= version and not goes_back then return nil end
  if goes_back or meta_number('epoch') < record.epoch or ahead < version then adopt_table(tickets, rates, version) end
  redis.call('HSET', META, 'record', text, 'recorded', version)
  return record.ancestry
end

local function restore_answer(epoch, version, kept, dropped)
  local record = meta('record')
  local folder = record and cjson.encode(cjson.decode(record).folder) or 'null'
  return string.format('{"epoch":%s,"lineage":%s,"version":%d,"folder":%s,"keptGroups":%d,"droppedGroups":%d}',
    epoch, epoch, version, folder, kept, dropped)
end

local function restore_all(version, missing)
  local kept, dropped = 0, 0
  retire_before(version)
  for _, r in ipairs(redis.call('ZRANGE', PARTITIONS, 0, -1)) do
    local k, d = restore_partition(tonumber(r), version, missing)
    kept, dropped = kept + k, dropped + d
  end
  redis.call('ZREMRANGEBYSCORE', OPEN, '-inf', '(' .. version * SHAPE.batch)
  return kept, dropped
end

-- Groups between c and the next place that have no record (never put): their places are open again.
local function reopen_places(version)
  for place = version * SHAPE.batch, meta_number('next') - 1 do
    local r, group = place_group(place)
    if redis.call('HEXISTS', key(r, 'groups'), group) == 0 then redis.call('ZADD', OPEN, place, place) end
  end
  if meta_number('next') < version * SHAPE.batch then redis.call('HSET', META, 'next', version * SHAPE.batch) end
end

-- Epoch, decision id, run id, record ('' for none), ticket table ('' for none), the rates that it had (packed), folders that are
-- damaged (a JSON list), then chunk ids whose bytes are gone.
admin_call('raise_epoch', function(args, _, all)
  local epoch, decision, current = tonumber(args[1]), args[2], meta_number('epoch')
  if epoch == current and decision == meta('decision') then return {meta('restore')} end
  if epoch <= current then
    refuse('WRONGEPOCH', 'epoch ' .. epoch .. ' is not above the current epoch ' .. current .. ' (decision ' .. (meta('decision') or 'none') .. ')')
  end
  if meta('run') ~= args[3] and all[#all] ~= 'force' then
    refuse('NOTOPEN', 'the control Redis was started anew and the coordinator has not opened it')
  end
  local tickets = args[4] ~= '' and decoded_table(args[5], epoch)
  local missing = {}
  for i = 8, #args - 1 do missing[args[i]] = true end
  fence()
  local ancestry = args[4] ~= '' and adopt_record(args[4], tickets, args[6], args[7]) or nil
  local version = meta_number('recorded')
  open_lineage(epoch, version, ancestry)
  evaluation.restore()
  redis.call('HSET', META, 'epoch', epoch, 'decision', decision, 'published', version, 'restored', version, 'run', args[3])
  redis.call('HSET', META, 'seq', math.max(meta_number('seq'), meta_number('lost')))
  redis.call('HDEL', META, 'lost', 'publish_call', 'record_call')
  local kept, dropped = restore_all(version, missing)
  reopen_places(version)
  -- A server that lost its tail may name chunks that were replaced, and deleted, since.
  if all[#all] == 'force' then partials.forget_all() else partials.restore(version) end
  local answer = restore_answer(epoch, version, kept, dropped)
  redis.call('HSET', META, 'restore', answer)
  wake('tickets')
  return {answer}, true
end, true)
