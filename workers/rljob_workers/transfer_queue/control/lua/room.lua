-- Room: what keeps tickets back when memory is short, and which rows go first when that does not help.

admin_call('memory', function(args)
  if (meta('memory') or '0') == args[1] then return {} end
  redis.call('HSET', META, 'memory', args[1])
  wake('tickets')
  return {}, true
end)

-- Puts what went on a list for the coordinator to tell, {kind, partition, groups, rows, rows in all}, and gives that.
local function note_dropped(kind, r, groups)
  local rows = groups * SHAPE.samples
  redis.call('HINCRBY', META, kind, rows)
  local total = meta_number('dropped_retained') + meta_number('dropped_unclaimed')
  local packed = struct.pack('<I4I4I4I4d', kind == 'dropped_retained' and 0 or 1, r, groups, rows, total)
  redis.call('RPUSH', DROPPED, packed)
  return {packed}, true
end

-- Rows of partitions that are done with are kept for a restore only: the oldest such partition goes.
admin_call('drop_retained', function()
  for _, r in ipairs(redis.call('ZRANGE', PARTITIONS, meta_number('recorded'), '(' .. training.first(), 'BYSCORE')) do
    local dropped = 0
    for _, name in ipairs(redis.call('HKEYS', key(r, 'groups'))) do
      local g = load_group(r, tonumber(name))
      if g.state == 'p' then
        mark_absent(r, tonumber(name), g)
        dropped = dropped + 1
      end
    end
    if dropped > 0 then
      end_leases(function(lease) return lease.r == tonumber(r) end)
      settle(r)
      return note_dropped('dropped_retained', tonumber(r), dropped)
    end
  end
  return {}
end)

-- The unclaimed groups of the newest partition go and are issued again.
admin_call('drop_newest', function()
  local published = meta_number('published')
  for _, name in ipairs(redis.call('ZRANGE', PARTITIONS, '+inf', '(' .. published, 'BYSCORE', 'REV')) do
    local r, unclaimed = tonumber(name), {}
    for _, group in ipairs(redis.call('HKEYS', key(r, 'groups'))) do
      local g = load_group(r, tonumber(group))
      if g.state == 'p' and not training_touched(r, tonumber(group)) then unclaimed[#unclaimed + 1] = tonumber(group) end
    end
    if #unclaimed > 0 then
      end_leases(function(lease) return lease.r == r end)
      for _, group in ipairs(unclaimed) do reissue_group(r, group, load_group(r, group)) end
      settle(r)
      return note_dropped('dropped_unclaimed', r, #unclaimed)
    end
  end
  return {}
end)

-- The first so many of the list were told.
admin_call('forget_dropped', function(args)
  redis.call('LTRIM', DROPPED, tonumber(args[1]), -1)
  return {}, true
end)
