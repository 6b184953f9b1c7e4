-- Another table of columns than the one under which rows were put. `layout.py` decides whether they go on. Nobody who
-- knew the table before may change anything more, and the epoch that is raised next begins at the record.

do -- its names are its own: a library has room for 200

-- Digest and table of what the rows were put under, and, where that is not this one, the fields that some row has.
read_call('layout', function()
  local answer, seen = {meta('layout') or '', meta('table') or ''}, {}
  if meta('layout') == SHAPE.layout then return answer end
  for _, name in ipairs(redis.call('KEYS', 'p:*:f:*')) do
    local field = string.match(name, '^p:%d+:f:(.*)$')
    if field and not seen[field] then
      seen[field] = true
      answer[#answer + 1] = field
    end
  end
  return answer
end)

-- Rows that this table has no use for: their draws return. Gives how many groups went.
local function forget_layout()
  local version, groups = meta_number('recorded'), 0
  for _, r in ipairs(redis.call('ZRANGE', PARTITIONS, version, '+inf', 'BYSCORE')) do
    for _, group in ipairs(redis.call('HKEYS', key(r, 'groups'))) do
      local g = load_group(r, group)
      if g.state == 'p' then groups = groups + 1 end
      return_draws(g)
    end
  end
  fence()
  for _, pattern in ipairs({'p:*', 'q:ready:*', 'q:finished:*', 'q:tickets:*', 'q:taken:*'}) do
    for _, name in ipairs(redis.call('KEYS', pattern)) do redis.call('DEL', name) end
  end
  redis.call('DEL', PARTITIONS, GARBAGE, OPEN)
  redis.call('HSET', META, 'next', version * SHAPE.batch)
  return groups
end

-- The bytes of a field go: `bit` marks the rows that have it.
local function drop_field(r, masks, name, field)
  local metas, counts = redis.call('GET', key(r, 'f:' .. name)), {}
  for row = 0, SHAPE.rows - 1 do
    if bit.band(struct.unpack('<I4', masks, row * 4 + 1), field) ~= 0 then
      count_refs(counts, string.sub(metas, row * ROW_BYTES + 1, (row + 1) * ROW_BYTES))
    end
  end
  release_chunks(r, counts)
end

-- Each mask with the bits that its fields have now.
local function remapped(masks, bits)
  local known, fresh = {}, {}
  for i = 1, #masks, 4 do
    local packed = string.sub(masks, i, i + 3)
    if not known[packed] then
      local before, now = struct.unpack('<I4', packed), 0
      for _, pair in ipairs(bits) do
        if bit.band(before, pair[1]) ~= 0 then now = bit.bor(now, pair[2]) end
      end
      known[packed] = struct.pack('<I4', now)
    end
    fresh[#fresh + 1] = known[packed]
  end
  return table.concat(fresh)
end

local function forget_names(r, plan)
  for _, gone in ipairs(plan.fields) do redis.call('DEL', key(r, 'f:' .. gone[1])) end
  for _, task in ipairs(plan.tasks) do
    redis.call('DEL', key(r, 's:' .. task), key(r, 'q:' .. task), key(r, 'b:' .. task))
    redis.call('HDEL', key(r, 'done'), task)
  end
end

local function remap_partition(r, plan)
  local masks = redis.call('GET', key(r, 'mask'))
  for _, gone in ipairs(plan.fields) do drop_field(r, masks, gone[1], gone[2]) end
  forget_names(r, plan)
  redis.call('SET', key(r, 'mask'), remapped(masks, plan.bits))
  for _, task in ipairs(SHAPE.tasks) do
    redis.call('SET', key(r, 's:' .. task.name), string.rep('u', SHAPE.rows), 'NX')
  end
  settle(r)
end

-- Rows go on under this table. Gives how many groups did.
local function remap_rows(plan)
  for _, incarnation in ipairs(redis.call('HKEYS', LIVE)) do return_all(incarnation) end
  forget_ranks()
  for _, task in ipairs(plan.tasks) do redis.call('DEL', 'q:ready:' .. task, 'q:finished:' .. task) end
  for _, r in ipairs(redis.call('ZRANGE', GARBAGE, 0, -1)) do forget_names(r, plan) end
  local groups = 0
  for _, r in ipairs(redis.call('ZRANGE', PARTITIONS, 0, -1)) do
    remap_partition(r, plan)
    for _, packed in ipairs(redis.call('HVALS', key(r, 'groups'))) do
      if group_state(packed) == 'p' then groups = groups + 1 end
    end
  end
  return groups
end

-- Digest that was read, table of this shape, what differs ('' for nothing), how the rows go on ('' where they go). The
-- answer is the last change, until it was reported: seq, groups, 1 where they went on, and what differed.
admin_call('adopt_layout', function(args)
  local layout = meta('layout')
  if (layout or '') ~= args[1] then
    refuse('MISMATCH', 'the rows lie under the layout ' .. (layout or 'none') .. ' now, and lay under ' .. args[1] .. ' before')
  end
  if layout == SHAPE.layout then return {meta('layout_change') or ''} end
  if layout then
    local groups = args[4] == '' and forget_layout() or remap_rows(cjson.decode(args[4]))
    redis.call('HSET', META, 'layout_change', meta_number('seq') .. ' ' .. groups .. ' ' .. (args[4] == '' and 0 or 1) .. ' ' .. args[3])
  end
  redis.call('HSET', META, 'layout', SHAPE.layout, 'table', args[2])
  return {meta('layout_change') or ''}, true
end, true)

-- Seq of the change that was reported.
admin_call('forget_layout_change', function(args)
  local change = meta('layout_change')
  if not change or string.match(change, '^%d+') ~= args[1] then return {} end
  redis.call('HDEL', META, 'layout_change')
  return {}, true
end)

end
