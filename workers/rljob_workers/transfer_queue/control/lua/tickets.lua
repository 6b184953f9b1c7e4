-- Tickets: the gate, capacity, draws, returns, suspects. A group's place in the whole job is r * batch + group.

local function group_place(r, group) return r * SHAPE.batch + group end

local function place_group(place)
  local r = math.floor(place / SHAPE.batch)
  return r, place - r * SHAPE.batch
end

local function tickets_of(incarnation) return 'q:tickets:' .. incarnation end

-- Which places unfinished groups may leave (`swaps.lua`). A table, as below.
local swap = {}

-- Work of a life: its tickets, and those that others got while it held them, until its beats list them no more. A table, since
-- Lua has room for no more local names.
local work = {}

function work.taken_from(incarnation) return 'q:taken:' .. incarnation end

-- All of its tickets that its worker may die of; `work.evaluates` asks for samples of an evaluation, which it may die of, too.
function work.count(incarnation)
  return redis.call('SCARD', tickets_of(incarnation)) + redis.call('SCARD', work.taken_from(incarnation))
end

function work.forget(incarnation) redis.call('DEL', tickets_of(incarnation), work.taken_from(incarnation)) end

function work.forget_taken_but(incarnation, listed)
  for _, id in ipairs(redis.call('SMEMBERS', work.taken_from(incarnation))) do
    if not listed[tonumber(id)] then redis.call('SREM', work.taken_from(incarnation), id) end
  end
end

local function load_ticket(id)
  local packed = redis.call('HGET', TICKETS, id)
  if not packed then return nil end
  local t = cmsgpack.unpack(packed)
  return {id = id, r = t[1], group = t[2], attempt = t[3], prompt = t[4], owner = t[5], missed = t[6], alone = t[7], since = t[8],
          version = t[9]}
end

local function save_ticket(t)
  redis.call('HSET', TICKETS, t.id,
    cmsgpack.pack({t.r, t.group, t.attempt, t.prompt, t.owner, t.missed, t.alone, t.since, t.version}))
end

local function forget_ticket(t)
  redis.call('HDEL', TICKETS, t.id)
  redis.call('SREM', tickets_of(t.owner), t.id)
  swap.withdraw(t)
end

-- Groups issued in partitions that are not done with: derived from the places, never counted up and down.
local function groups_issued()
  local first, next_place = training.first() * SHAPE.batch, meta_number('next')
  return math.max(next_place - first, 0) - redis.call('ZCOUNT', OPEN, first, '+inf')
end

function suspicion.deaths_of(prompt) return tonumber(redis.call('HGET', KILLS, prompt) or '0') end

local function is_suspect(prompt) return suspicion.is_suspect(suspicion.deaths_of(prompt)) end

local function draw_prompt()
  local prompt
  repeat
    local returned = redis.call('ZPOPMIN', FRONT)
    prompt = #returned > 0 and tonumber(returned[1]) or redis.call('HINCRBY', META, 'cursor', 1) - 1
  until not suspicion.is_set_aside(suspicion.deaths_of(prompt)) -- also where a restore has returned it to the front
  return prompt
end

local function wait_again(r, group, g)
  g.state, g.ticket = 'w', 0
  save_group(r, group, g)
  redis.call('ZADD', AGAIN, group_place(r, group), group_place(r, group))
  wake('tickets')
end

-- `version`: what the owner's engine holds; no token will be older.
local function issue(owner, version, r, group, g, alone)
  local id = redis.call('HINCRBY', META, 'tickets', 1)
  g.state, g.ticket, g.begun = 'i', id, g.begun or r
  save_group(r, group, g)
  redis.call('ZREM', AGAIN, group_place(r, group))
  local t = {id = id, r = r, group = group, attempt = g.attempt, prompt = g.prompt, owner = owner, missed = 0,
             alone = alone, since = now_ms(), version = version}
  save_ticket(t)
  swap.offer(t)
  redis.call('SADD', tickets_of(owner), id)
  return struct.pack('<I4I4I4I4I4I4I4i4', id, r, group, g.attempt, g.prompt, alone, g.refused, r - g.begun)
end

-- The ticket comes back; its group keeps reservation, attempt and prompt.
local function return_ticket(t)
  forget_ticket(t)
  wait_again(t.r, t.group, load_group(t.r, t.group))
end

-- Gives the group the next prompt, under the same reservation.
local function draw_another(g)
  partials.forget(g.prompt)
  g.rejected[#g.rejected + 1] = g.prompt
  g.prompt, g.late, g.begun = draw_prompt(), 0, nil
end

-- Closes attempt a and opens a + 1.
local function next_attempt(g)
  g.attempt = g.attempt + 1
  draw_another(g)
end

-- Whether the group may have no further draw that fails. What a filter refuses has not failed: its limit is the replica's.
local function is_last_attempt(g) return g.attempt - g.refused + 1 >= SHAPE.attempts end

-- The owner died (or its engine) with these tickets in work.
-- Whatever is set aside is put on a list for the coordinator to tell: {prompt, r, group, attempt, deaths, exhausted}.
local function kill_tickets(tickets)
  for _, t in ipairs(tickets) do
    local deaths, g = suspicion.after_death(suspicion.deaths_of(t.prompt), t.alone == 1), load_group(t.r, t.group)
    redis.call('HSET', KILLS, t.prompt, deaths)
    if t.alone == 1 then partials.forget(t.prompt) end -- what was generated of it may be what kills
    if suspicion.is_set_aside(deaths) then
      local exhausted = is_last_attempt(g)
      curriculum.count(t.prompt)
      redis.call('RPUSH', ASIDE, struct.pack('<I4I4I4I4I4I4', t.prompt, t.r, t.group, g.attempt, deaths, exhausted and 1 or 0))
      if not exhausted then next_attempt(g) end
    end
    forget_ticket(t)
    wait_again(t.r, t.group, g)
  end
end

local function tickets_held(owner)
  local held = {}
  for _, id in ipairs(redis.call('SMEMBERS', tickets_of(owner))) do
    local t = load_ticket(tonumber(id))
    if t then held[#held + 1] = t end
  end
  table.sort(held, function(a, b) return a.id < b.id end)
  return held
end

local function return_all(owner)
  for _, t in ipairs(tickets_held(owner)) do return_ticket(t) end
  work.forget(owner)
end

-- Others get what a life holds and may never do. A prompt that is alone stays: it may be what holds the life up.
function work.take_back(owner)
  local taken = 0
  for _, t in ipairs(tickets_held(owner)) do
    if t.alone == 0 then
      return_ticket(t)
      redis.call('SADD', work.taken_from(owner), t.id)
      taken = taken + 1
    end
  end
  return taken
end

-- What keeps the group at `place` from a replica that holds version `version`, apart from its own state. Where groups are
-- carried on, more may be drawn than the open rollouts have places for: those go on under the weights of later versions, or to
-- places of open rollouts. `g` is nil for a group that is yet to be drawn; one that was finished too early, or too late, waits
-- for weights that its rollout learns from: else it would be finished too early again.
local function gate(place, version, g)
  local r = math.floor(place / SHAPE.batch)
  if r >= SHAPE.rollouts then return 'NoneOpen' end
  if meta('draining') then return 'Draining' end
  local is_bound = not SHAPE.carries or g and g.late > 0
  if (is_bound and r or math.min(r, meta_number('published') + SHAPE.staleness)) - version > SHAPE.staleness then
    return 'Staleness'
  end
  -- What the trainer waits for is generated all the same: it makes room, and what has none then fails by name.
  if meta('memory') == '1' and r > meta_number('published') then return 'Memory' end
  return nil
end

local function gate_new(place, version)
  local closed = gate(place, version)
  if closed then return closed end
  if groups_issued() >= SHAPE.capacity then return 'Capacity' end
  return nil
end

local function lowest_unreserved()
  local open = redis.call('ZRANGE', OPEN, 0, 0)
  local next_place = meta_number('next')
  return #open > 0 and math.min(tonumber(open[1]), next_place) or next_place
end

local function reserve(place)
  if redis.call('ZREM', OPEN, place) == 0 then redis.call('HSET', META, 'next', place + 1) end
  local r, group = place_group(place)
  make_partition(r)
  return r, group, {state = 'w', attempt = 0, prompt = draw_prompt(), ticket = 0, rejected = {}, refused = 0, late = 0}
end

-- Issues up to `limit` groups, lowest place first; gives the packed tickets, why it stopped, whether anything changed.
local function issue_some(owner, version, limit)
  local again, at, given, held, changed = redis.call('ZRANGE', AGAIN, 0, -1), 1, {}, work.count(owner), false
  local why
  while #given < limit do
    local place, waiting = lowest_unreserved(), tonumber(again[at])
    local closed = gate_new(place, version)
    local r, group, g
    if waiting and (waiting < place or closed) then
      at = at + 1
      r, group = place_group(waiting)
      g = load_group(r, group)
      closed = gate(waiting, version, g)
      if closed and g.late == 0 then return given, closed, changed end
    elseif closed then
      return given, why or closed, changed
    else
      r, group, g = reserve(place)
      changed = true
    end
    if closed then
      why = why or closed -- for this one: those behind it may be issued
    elseif not is_suspect(g.prompt) then
      given[#given + 1] = issue(owner, version, r, group, g, 0)
    elseif held + #given == 0 and not work.evaluates(owner) then
      return {issue(owner, version, r, group, g, 1)}, nil, true
    else
      why = 'Suspect'
      if g.ticket == 0 and redis.call('ZSCORE', AGAIN, group_place(r, group)) == false then wait_again(r, group, g) end
    end
  end
  return given, why, changed
end

rank_call('claim_tickets', function(args, owner)
  local lineage, version, limit = args[1], tonumber(args[2]), tonumber(args[3])
  if not is_alive(lineage, version) then return {'W', 'DeadWeights'} end
  for _, t in ipairs(tickets_held(owner)) do
    if t.alone == 1 then return {'W', 'Suspect'} end
  end
  if work.evaluates_alone(owner) then return {'W', 'Suspect'} end
  local given, why, changed = issue_some(owner, version, limit)
  if #given == 0 then return {'W', why}, changed or nil end
  return {'T', table.concat(given)}, true
end)

rank_call('return_tickets', function(args, owner)
  local mine = {}
  for i = 2, #args do
    local t = load_ticket(tonumber(args[i]))
    if t and t.owner == owner then mine[#mine + 1] = t end
  end
  if args[1] == '1' then
    kill_tickets(mine)
  else
    for _, t in ipairs(mine) do return_ticket(t) end
  end
  return {}, true
end)

-- The owner goes on with another prompt for the ticket's group; `draw` gives it one. `scored`: as the curriculum counts it.
local function exchange(owner, t, g, draw, scored)
  forget_ticket(t)
  curriculum.count(t.prompt, scored)
  redis.call('HDEL', KILLS, t.prompt)
  draw(g)
  local suspect = is_suspect(g.prompt)
  if meta('draining') or suspect and (work.count(owner) > 0 or work.evaluates(owner)) then
    wait_again(t.r, t.group, g)
    return {'L'}, true
  end
  return {'T', issue(owner, t.version, t.r, t.group, g, suspect and 1 or 0)}, true
end

rank_call('redraw', function(args, owner)
  local t = load_ticket(tonumber(args[1]))
  if not t or t.owner ~= owner then return {'L'} end
  local g = load_group(t.r, t.group)
  if is_last_attempt(g) then return {'X', g.attempt - g.refused + 1} end
  return exchange(owner, t, g, next_attempt)
end)

-- Its samples are there, and a filter would not have them trained. Ticket, what they have earned.
rank_call('refuse', function(args, owner)
  local t = load_ticket(tonumber(args[1]))
  if not t or t.owner ~= owner then return {'L'} end
  local g = load_group(t.r, t.group)
  g.refused = g.refused + 1
  return exchange(owner, t, g, next_attempt, args[2])
end)

-- Nothing was generated for the prompt: it is no attempt.
rank_call('pass_over', function(args, owner)
  local t = load_ticket(tonumber(args[1]))
  if not t or t.owner ~= owner then return {'L'} end
  return exchange(owner, t, load_group(t.r, t.group), draw_another)
end)
