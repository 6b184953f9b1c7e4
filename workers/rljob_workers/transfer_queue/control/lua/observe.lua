-- What can be read: counts, tables, and the proof that the lists agree with the masks. Changes nothing.

local function ready_rows(task)
  local rows = 0
  for _, r in ipairs(redis.call('ZRANGE', 'q:ready:' .. task.name, 0, -1)) do
    rows = rows + ready.rows(r, task)
  end
  return rows
end

-- Why no ticket is given to a replica that holds the published weights; nil: one is.
local function withheld_now()
  local published = meta_number('published')
  for _, waiting in ipairs(redis.call('ZRANGE', AGAIN, 0, -1)) do
    local place = tonumber(waiting)
    local g = load_group(place_group(place))
    if not gate(place, published, g) then return nil end
    if g.late == 0 then break end -- and so do those behind it, as in `issue_some`
  end
  return gate_new(lowest_unreserved(), published)
end

read_call('stats', function()
  local answer = {groups_issued(), SHAPE.capacity, withheld_now() or '', meta_number('seq'),
                  tostring(meta('epoch') or 0), meta_number('published'), meta('recorded') or -1,
                  meta('draining') or '', meta('drained_until') or ''}
  for _, task in ipairs(SHAPE.tasks) do
    answer[#answer + 1] = task.name
    answer[#answer + 1] = ready_rows(task)
  end
  return answer
end)

read_call('restore_point', function() return {meta('restore') or '', meta('record') or '', meta('decision') or ''} end)

read_call('units', function() return redis.call('HGETALL', UNITS) end)

read_call('lives', function() return redis.call('HKEYS', LIVE) end)

read_call('aside', function() return redis.call('LRANGE', ASIDE, 0, -1) end)

read_call('dropped', function() return redis.call('LRANGE', DROPPED, 0, -1) end)

read_call('missed', function() return redis.call('SMEMBERS', MISSED) end)

-- Partitions with rows, with `all` also those that wait to be collected.
read_call('partitions', function(args)
  local found = {}
  for _, where in ipairs(args[1] == 'all' and {PARTITIONS, GARBAGE} or {PARTITIONS}) do
    for _, r in ipairs(redis.call('ZRANGE', where, 0, -1)) do found[#found + 1] = tonumber(r) end
  end
  return found
end)

local CHUNKS_AT_ONCE = 1000

-- Partition, cursor: a page of the chunks that it names, of one that waits to be collected only with `all`.
-- Gives the next page's cursor ('0': there is none), then id and descriptor of each.
read_call('chunks', function(args)
  if args[1] ~= 'all' and redis.call('ZSCORE', PARTITIONS, args[2]) == false then return {'0'} end
  local page = redis.call('HSCAN', key(args[2], 'chunks'), args[3], 'COUNT', CHUNKS_AT_ONCE)
  table.insert(page[2], 1, page[1])
  return page[2]
end)

read_call('ticket_table', function()
  local draws, kills = {}, {}
  for _, r in ipairs(redis.call('ZRANGE', PARTITIONS, training.first(), '+inf', 'BYSCORE')) do
    for _, group in ipairs(redis.call('HKEYS', key(r, 'groups'))) do
      local g = load_group(tonumber(r), tonumber(group))
      local draw = {group_place(tonumber(r), tonumber(group)), g.prompt}
      for _, prompt in ipairs(g.rejected) do draw[#draw + 1] = prompt end
      draws[#draws + 1] = draw
    end
  end
  return {meta_number('cursor'), redis.call('ZRANGE', FRONT, 0, -1), cjson.encode(draws), redis.call('HGETALL', KILLS),
          unpack(curriculum.saved())}
end)

local function rows_put(r)
  local rows = 0
  for _, packed in ipairs(redis.call('HVALS', key(r, 'groups'))) do
    if group_state(packed) == 'p' then rows = rows + SHAPE.samples end
  end
  return rows
end

-- Task, partition: per needed field how many rows lack it. From counts and from groups: many ask while they wait.
read_call('lacking', function(args)
  local task, r, answer = SHAPE.task[args[1]], args[2], {}
  for i, name in ipairs(task.need_fields) do
    local maker
    for _, one in ipairs(SHAPE.tasks) do
      if bit.band(one.writes, SHAPE.bit[name]) ~= 0 then maker = one.name end
    end
    answer[i] = SHAPE.rows - (maker and tonumber(redis.call('HGET', key(r, 'done'), maker) or '0') or rows_put(r))
  end
  return answer
end)

-- ---- invariants

do

local LETTERS = {u = true, r = true, c = true, d = true}

local function check_state(r, task, broken)
  local mask, states = redis.call('GET', key(r, 'mask')), redis.call('GET', key(r, 's:' .. task.name))
  local where, listed, done, span = 'train_' .. r .. ' ' .. task.name .. ': ', {}, 0, ready.span(task)
  local entries, misplaced = ready.all(r, task)
  for _, entry in ipairs(misplaced) do
    broken[#broken + 1] = where .. 'entry ' .. entry .. ' of the ready list is not of the optimizer step that it stands under'
  end
  for _, row in ipairs(ready.rows_of(task, entries)) do
    if listed[row] then broken[#broken + 1] = where .. 'row ' .. row .. ' is twice on the ready list' end
    listed[row] = true
  end
  for row = 0, SHAPE.rows - 1 do
    local letter, complete = string.sub(states, row + 1, row + 1), covers(struct.unpack('<I4', mask, row * 4 + 1), task.needs)
    if not LETTERS[letter] then broken[#broken + 1] = where .. 'row ' .. row .. ' has state ' .. letter end
    if (letter == 'r') ~= complete and (letter == 'r' or letter == 'u') then
      broken[#broken + 1] = where .. 'row ' .. row .. ' has state ' .. letter .. ' but its fields say otherwise'
    end
    if span == 1 and (letter == 'r') ~= (listed[row] or false) then
      broken[#broken + 1] = where .. 'row ' .. row .. ' has state ' .. letter .. ' and the ready list disagrees'
    end
    if listed[row] and letter ~= 'r' then broken[#broken + 1] = where .. 'row ' .. row .. ' is listed in state ' .. letter end
    if letter == 'd' then done = done + 1 end
  end
  if span > 1 then
    local whole = string.rep('r', span)
    for first = 0, SHAPE.rows - 1, span do
      if string.sub(states, first + 1, first + span) == whole and not listed[first] then
        broken[#broken + 1] = where .. 'all ' .. span .. ' rows from row ' .. first .. ' on are ready and not on the ready list'
      end
    end
  end
  if done ~= tonumber(redis.call('HGET', key(r, 'done'), task.name) or '0') then
    broken[#broken + 1] = where .. done .. ' rows are done, the count disagrees'
  end
  local finished = redis.call('ZSCORE', 'q:finished:' .. task.name, r) ~= false
  if finished ~= (done == SHAPE.rows) then broken[#broken + 1] = where .. 'finished is ' .. tostring(finished) .. ' at ' .. done .. ' rows' end
  local listed_partition = redis.call('ZSCORE', 'q:ready:' .. task.name, r) ~= false
  if listed_partition ~= (next(listed) ~= nil) then broken[#broken + 1] = where .. 'the set of ready partitions disagrees' end
end

-- Rows that are claimed by leases and batches, against state c.
local function check_claims(r, task, claimed, broken)
  local states = redis.call('GET', key(r, 's:' .. task.name))
  for _, packed in ipairs(redis.call('HVALS', key(r, 'b:' .. task.name))) do
    for _, row in ipairs(unpack_rows(packed)) do
      if claimed[row] then broken[#broken + 1] = 'train_' .. r .. ' ' .. task.name .. ': row ' .. row .. ' is in two batches' end
      claimed[row] = 'batch'
    end
  end
  local at = string.find(states, 'c', 1, true)
  while at do
    if not claimed[at - 1] then
      broken[#broken + 1] = 'train_' .. r .. ' ' .. task.name .. ': row ' .. at - 1 .. ' is claimed by nobody'
    end
    at = string.find(states, 'c', at + 1, true)
  end
  for row, by in pairs(claimed) do
    local letter = string.sub(states, row + 1, row + 1)
    if by == 'lease' and letter ~= 'c' then
      broken[#broken + 1] = 'train_' .. r .. ' ' .. task.name .. ': row ' .. row .. ' is leased in state ' .. letter
    end
  end
end

local function leased_rows(broken)
  local leased = {}
  for _, id in ipairs(redis.call('HKEYS', LEASE)) do
    local lease = load_lease(id)
    local name = lease.r .. '/' .. lease.task.name
    leased[name] = leased[name] or {}
    for _, row in ipairs(lease.rows) do
      if leased[name][row] then broken[#broken + 1] = name .. ': row ' .. row .. ' is leased twice' end
      leased[name][row] = 'lease'
    end
    if redis.call('ZSCORE', LEASES, id) == false then broken[#broken + 1] = 'lease ' .. id .. ' never expires' end
    if redis.call('HEXISTS', LIVE, lease.owner) == 0 then broken[#broken + 1] = 'lease ' .. id .. ' outlives ' .. lease.owner end
  end
  return leased
end

-- Of one field: its chunks against the rows that name them.
local function check_refs(r, name, broken)
  local counts, mask, field = {}, redis.call('GET', key(r, 'mask')), SHAPE.bit[name]
  local metas = redis.call('GET', key(r, 'f:' .. name)) or ''
  for row = 0, SHAPE.rows - 1 do
    if bit.band(struct.unpack('<I4', mask, row * 4 + 1), field) ~= 0 then
      local id = string.sub(metas, row * ROW_BYTES + 1, row * ROW_BYTES + ID_BYTES)
      counts[id] = (counts[id] or 0) + 1
    end
  end
  local refs, chunks = {}, redis.call('HGETALL', key(r, 'chunks'))
  for i = 1, #chunks, 2 do
    if string.match(chunks[i + 1], '^%d+|%d+|([^|]*)|') == name then
      local rows = tonumber(redis.call('HGET', key(r, 'refs'), chunks[i]) or '0')
      if counts[chunks[i]] ~= rows then
        broken[#broken + 1] = 'train_' .. r .. ': a chunk counts ' .. rows .. ' rows, ' .. (counts[chunks[i]] or 0) .. ' name it'
      end
      counts[chunks[i]] = nil
    end
  end
  for _ in pairs(counts) do broken[#broken + 1] = 'train_' .. r .. ': rows name a chunk that the partition does not have' end
end

local function check_group(r, group, broken)
  local g, place = load_group(r, group), group_place(r, group)
  local again, where = redis.call('ZSCORE', AGAIN, place) ~= false, 'train_' .. r .. ' group ' .. group .. ': '
  if again ~= (g.state == 'w') then broken[#broken + 1] = where .. 'state ' .. g.state .. ' and the list of returned groups disagree' end
  if redis.call('ZSCORE', OPEN, place) ~= false then broken[#broken + 1] = where .. 'has a record and is open' end
  if g.state == 'i' then
    local t = load_ticket(g.ticket)
    if not t or t.r ~= r or t.group ~= group then broken[#broken + 1] = where .. 'its ticket ' .. g.ticket .. ' is gone' end
  end
  local whole = g.state == 'p'
  for _, mask in pairs(group_masks(r, group)) do
    if whole ~= (bit.band(mask, SHAPE.generated_bits) == SHAPE.generated_bits) then
      broken[#broken + 1] = where .. 'state ' .. g.state .. ' and its rows disagree'
      return
    end
  end
end

local function check_tickets(broken)
  local tickets = {}
  for i, id in ipairs(redis.call('HKEYS', TICKETS)) do
    local t = load_ticket(tonumber(id))
    tickets[i] = t
    if load_group(t.r, t.group).ticket ~= t.id then broken[#broken + 1] = 'ticket ' .. id .. ' is not that of its group' end
    if redis.call('HEXISTS', LIVE, t.owner) == 0 then broken[#broken + 1] = 'ticket ' .. id .. ' outlives ' .. t.owner end
    if redis.call('SISMEMBER', tickets_of(t.owner), id) == 0 then broken[#broken + 1] = 'ticket ' .. id .. ' is not in its owner\'s set' end
  end
  swap.check(tickets, broken)
end

local function check_draws(broken)
  local seen = {}
  local function draw(prompt, where)
    if seen[prompt] then broken[#broken + 1] = 'prompt ' .. prompt .. ' is drawn by ' .. seen[prompt] .. ' and ' .. where end
    seen[prompt] = where
    if prompt >= meta_number('cursor') then broken[#broken + 1] = 'prompt ' .. prompt .. ' of ' .. where .. ' is beyond the cursor' end
  end
  for _, prompt in ipairs(redis.call('ZRANGE', FRONT, 0, -1)) do draw(tonumber(prompt), 'the front') end
  for _, r in ipairs(redis.call('ZRANGE', PARTITIONS, 0, -1)) do
    for _, group in ipairs(redis.call('HKEYS', key(r, 'groups'))) do
      local g, where = load_group(r, tonumber(group)), 'train_' .. r .. ' group ' .. group
      draw(g.prompt, where)
      for _, prompt in ipairs(g.rejected) do draw(prompt, where) end
    end
  end
end

local GROUPS_AT_ONCE = 128

-- One part of the proof, so that a job that runs is never held up for long: what no other part can contradict, since
-- nothing changes within a call. '' for what belongs to no partition; else a partition and a task, or `:chunks` and a
-- field, or `:groups` and the first of at most 128 groups.
read_call('check', function(args)
  local broken, r = {}, tonumber(args[1])
  if not r then
    leased_rows(broken)
    check_tickets(broken)
    check_draws(broken)
    partials.check(broken)
    local issued = groups_issued()
    if issued > SHAPE.capacity then broken[#broken + 1] = issued .. ' groups are issued, more than the capacity' end
  elseif redis.call('ZSCORE', PARTITIONS, r) == false then
    return {} -- recorded meanwhile
  elseif args[2] == ':chunks' then
    check_refs(r, args[3], broken)
    if redis.call('HLEN', key(r, 'chunks')) ~= redis.call('HLEN', key(r, 'refs')) then
      broken[#broken + 1] = 'train_' .. r .. ': as many chunks as counts of their rows were expected'
    end
  elseif args[2] == ':groups' then
    for group = tonumber(args[3]), math.min(args[3] + GROUPS_AT_ONCE, SHAPE.batch) - 1 do
      if redis.call('HEXISTS', key(r, 'groups'), group) == 1 then check_group(r, group, broken) end
    end
  else
    local task = SHAPE.task[args[2]]
    check_state(r, task, broken)
    check_claims(r, task, leased_rows({})[r .. '/' .. task.name] or {}, broken)
  end
  return broken
end)

end
