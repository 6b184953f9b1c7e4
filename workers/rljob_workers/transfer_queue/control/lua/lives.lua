-- Lives: opening the server, who is live, beats, publish, record.

local function check_life(epoch, incarnation) require_live(epoch, incarnation) end

-- Ends a life: its leases and tickets come back.
local function end_life(incarnation)
  redis.call('HDEL', LIVE, incarnation)
  redis.call('HDEL', CALLS, incarnation)
  end_leases(function(lease) return lease.owner == incarnation end)
  return_all(incarnation)
  evaluation.give_back(incarnation)
end

-- Leases count from here: who could not beat while server or coordinator were away has lost nothing.
local function renew_leases(milliseconds)
  local expiry = now_ms() + milliseconds
  for _, id in ipairs(redis.call('ZRANGE', LEASES, 0, -1)) do redis.call('ZADD', LEASES, 'XX', 'GT', expiry, id) end
end

-- The queue admin's first term is above all others; later it shows the one that it has. Its earlier calls are refused from
-- here on, though it has given them up: one may still be under way.
local function admit_admin(name, term, call)
  local current, previous = meta_number('term'), meta('admin')
  if term == 0 then term = current + 1 end
  if term < current then refuse_replaced(name) end
  if previous then redis.call('HDEL', CALLS, previous) end
  keep_answer(name, call, {})
  redis.call('HSET', META, 'admin', name, 'term', term)
  return term
end

-- Run id of this server, name of the queue admin, highest seq that a live launcher has seen, milliseconds of a lease, term of
-- the queue admin (0: none yet), call number.
redis.register_function('open' .. SUFFIX, function(_, args)
  local term = admit_admin(args[2], tonumber(args[5]), tonumber(args[6]))
  if meta('lost') or meta_number('seq') < tonumber(args[3]) then
    -- Sticky: what is changed on the way to the restore must not make the lost tail look whole. The restore goes on
    -- counting above what was seen, since launchers that saw it live on.
    redis.call('HSET', META, 'lost', math.max(meta_number('lost'), tonumber(args[3])))
    return {meta_number('seq'), 'ControlStateLost', term}
  end
  redis.call('HSET', META, 'run', args[1])
  renew_leases(tonumber(args[4]))
  return {redis.call('HINCRBY', META, 'seq', 1), 'Open', term}
end)

admin_call('begin_life', function(args)
  local epoch, incarnation, rank = args[1], args[2], args[3]
  if (meta('epoch') or '0') ~= epoch then
    refuse('FENCED', 'a life of epoch ' .. epoch .. ' cannot begin: the current epoch is ' .. (meta('epoch') or '0'))
  end
  local previous = redis.call('HGET', RANKS, rank)
  if previous and previous ~= incarnation then end_life(previous) end
  redis.call('HSET', RANKS, rank, incarnation)
  redis.call('HSET', LIVE, incarnation, args[4])
  return {}, true
end)

admin_call('end_life', function(args)
  if redis.call('HEXISTS', LIVE, args[1]) == 0 then return {} end
  end_life(args[1])
  return {}, true
end)

admin_call('suspect', function(args)
  local held = tickets_held(args[1])
  local samples = evaluation.held(args[1])
  kill_tickets(held)
  evaluation.kill(args[1], samples)
  return {}, #samples + #held > 0 or nil
end)

-- While the queue drains nobody else would get them.
admin_call('take_back', function(args)
  local taken = meta('draining') and 0 or work.take_back(args[1])
  local samples = evaluation.give_back(args[1])
  return {taken}, taken + samples > 0 or nil
end)

-- The first so many of the list were told.
admin_call('forget_aside', function(args)
  redis.call('LTRIM', ASIDE, tonumber(args[1]), -1)
  return {}, true
end)

-- Tickets that the life holds but did not list. True: something was changed that must not be changed twice.
local function miss_unlisted(owner, listed, now, unlisted_ms)
  local changed = nil
  for _, t in ipairs(tickets_held(owner)) do
    if listed[t.id] then
      if t.missed > 0 then
        t.missed = 0
        save_ticket(t)
      end
    elseif t.missed + 1 >= 2 and now - t.since >= unlisted_ms then
      return_ticket(t)
      changed = true
    else
      if t.missed == 0 then t.since = now end
      t.missed = t.missed + 1
      save_ticket(t)
      changed = true -- a beat that is sent again after a lost reply must not count as the second one
    end
  end
  return changed
end

-- Lease ms, ms that a ticket may be unlisted, then of each beat: incarnation, number of tickets, number of leases,
-- tickets..., leases...
admin_call('beats', function(args)
  local now, changed, at = now_ms(), nil, 3
  while at <= #args do
    local owner, tickets, leases, listed = args[at], tonumber(args[at + 1]), tonumber(args[at + 2]), {}
    at = at + 3
    for i = at, at + tickets - 1 do listed[tonumber(args[i])] = true end
    changed = miss_unlisted(owner, listed, now, tonumber(args[2])) or changed
    work.forget_taken_but(owner, listed)
    at = at + tickets
    for i = at, at + leases - 1 do
      local lease = load_lease(args[i])
      if lease and lease.owner == owner then redis.call('ZADD', LEASES, 'XX', now + tonumber(args[1]), args[i]) end
    end
    at = at + leases
  end
  return {}, changed
end)

-- Epoch and incarnation of the publisher, lineage, version, call id.
admin_call('publish', function(args)
  local lineage, version, published = args[3], tonumber(args[4]), meta_number('published')
  if meta('publish_call') == args[5] then return {published} end
  check_life(args[1], args[2])
  if lineage ~= meta('lineage') then
    refuse('DEAD', 'lineage ' .. lineage .. ' is not the current one (' .. (meta('lineage') or 'none') .. ')')
  end
  if version == published + 1 then
    local why = training.missing_to_publish(published)
    if why then refuse('INCOMPLETE', 'version ' .. version .. ' cannot be published: train_' .. published .. ': ' .. why) end
  elseif version ~= published or version ~= meta_number('restored') then
    refuse('INCOMPLETE', 'version ' .. version .. ' cannot be published after version ' .. published)
  end
  redis.call('HSET', META, 'published', version, 'publish_call', args[5])
  wake('tickets')
  return {version}, true
end)

local function ancestry_json()
  local pairs_of, parts = redis.call('HGETALL', ALIVE), {}
  for i = 1, #pairs_of, 2 do parts[#parts + 1] = '"' .. pairs_of[i] .. '":' .. pairs_of[i + 1] end
  return '{' .. table.concat(parts, ',') .. '}'
end

local function retire_before(version)
  for _, r in ipairs(redis.call('ZRANGE', PARTITIONS, '-inf', '(' .. version, 'BYSCORE')) do
    redis.call('ZADD', GARBAGE, r, r)
    redis.call('ZREM', PARTITIONS, r)
    for _, task in ipairs(SHAPE.tasks) do
      redis.call('ZREM', 'q:ready:' .. task.name, r)
      redis.call('ZREM', 'q:finished:' .. task.name, r)
    end
  end
  end_leases(function(lease) return lease.r < version end)
  -- Who asks for these partitions is told that they are done with.
  for _, task in ipairs(SHAPE.tasks) do wake(task.name) end
end

-- Epoch and incarnation of the writer, lineage, version, folder (JSON string), checksums (JSON), call id.
admin_call('record', function(args)
  if meta('record_call') == args[7] then return {meta('record')} end
  check_life(args[1], args[2])
  local version = tonumber(args[4])
  if not is_alive(args[3], version) then refuse('DEAD', 'v' .. args[4] .. '@' .. args[3] .. ' is dead and cannot be recorded') end
  if version > meta_number('published') then
    refuse('INCOMPLETE', 'version ' .. version .. ' is not published yet (published: ' .. meta_number('published') .. ')')
  end
  if meta('record') and version <= meta_number('recorded') then
    refuse('INCOMPLETE', 'version ' .. version .. ' is not newer than the recorded version ' .. meta_number('recorded'))
  end
  local first = training.first()
  if version > first then
    refuse('INCOMPLETE', 'version ' .. version .. ' cannot be recorded: train_' .. first .. ': ' .. training.missing_to_record(first))
  end
  local record = '{"id":{"lineage":' .. args[3] .. ',"version":' .. version .. '},"epoch":' .. args[1] .. ',"folder":' .. args[5]
    .. ',"checksums":' .. args[6] .. ',"ancestry":' .. ancestry_json() .. '}'
  redis.call('HSET', META, 'record', record, 'recorded', version, 'record_call', args[7])
  retire_before(version)
  curriculum.forget_recorded()
  return {record}, true
end)
