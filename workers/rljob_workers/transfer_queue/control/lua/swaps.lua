-- Swaps (`rollout.order: Swap`): a group that is put takes the lowest place that is still unfinished, and what was to fill
-- that place gets its place. A group that is still generating goes to a later rollout only as far as the bound lets it:
-- no token of it is older than what its engine held when its ticket was issued. Where groups are carried on
-- (`rollout.partial`) it goes anywhere: tokens that become too old are not trained on.
-- `q:movable:VERSION` is the sorted set of tickets that were issued under a version that leaves the remainder VERSION, by their places.
-- Tickets of at most maxStaleness + 1 versions are in work, so that a set is of one version, or of all.

do

local NUM_SETS = SHAPE.carries and 1 or SHAPE.staleness + 1

local function movable(version) return 'q:movable:' .. version % NUM_SETS end

-- The ticket's group is in work at its place.
function swap.offer(t)
  if SHAPE.swaps then redis.call('ZADD', movable(t.version), group_place(t.r, t.group), t.id) end
end

function swap.withdraw(t)
  if SHAPE.swaps then redis.call('ZREM', movable(t.version), t.id) end
end

-- Tickets end with their epoch.
function swap.forget_all()
  for _, name in ipairs(redis.call('KEYS', 'q:movable:*')) do redis.call('DEL', name) end
end

-- The lowest unfinished place before rollout r whose group may go to r. One that waits to be issued again has no token yet. A
-- suspect waits for a replica that has nothing else: it stays, so that its rollout waits for it as well. Else all that is
-- finished would be put before it, to the end of the job.
local function lowest_before(r)
  local lowest = r * SHAPE.batch
  local function look(places)
    if #places > 0 then lowest = math.min(lowest, tonumber(places[#places])) end
  end
  local waiting, i = nil, 0
  repeat
    waiting, i = redis.call('ZRANGE', AGAIN, i, i), i + 1
  until #waiting == 0 or not is_suspect(load_group(place_group(tonumber(waiting[1]))).prompt)
  look(waiting)
  local newest = meta_number('published')
  for version = SHAPE.carries and newest or math.max(r - SHAPE.staleness, 0), newest do
    look(redis.call('ZRANGE', movable(version), 0, 0, 'WITHSCORES'))
  end
  return lowest < r * SHAPE.batch and lowest or nil
end

local function exchange_places(t, place)
  local r, group = place_group(place)
  local mine, other = load_group(t.r, t.group), load_group(r, group)
  local moved = load_ticket(other.ticket)
  if other.state == 'i' and not moved then
    refuse('MISMATCH', 'group ' .. group .. ' of train_' .. r .. ' is in work under ticket ' .. other.ticket .. ', which is gone')
  end
  save_group(r, group, mine)
  save_group(t.r, t.group, other)
  if other.state == 'w' then
    redis.call('ZREM', AGAIN, place)
    redis.call('ZADD', AGAIN, group_place(t.r, t.group), group_place(t.r, t.group))
  else
    moved.r, moved.group = t.r, t.group
    save_ticket(moved)
    swap.offer(moved)
  end
  t.r, t.group = r, group
  redis.call('HINCRBY', META, 'swaps', 1)
end

-- The ticket's group is there: it goes as far to the front as it can. By several exchanges where the first place that is
-- free for it leads to a lower one, whose group may not go as far as its own. The ticket ends in this call: it is not saved.
function swap.to_the_front(t)
  local place = lowest_before(t.r)
  while place do
    exchange_places(t, place)
    place = lowest_before(t.r)
  end
end

-- Each ticket is in the set of its version, at its place, and nothing else is in any.
function swap.check(tickets, broken)
  local listed = 0
  for _, name in ipairs(redis.call('KEYS', 'q:movable:*')) do listed = listed + redis.call('ZCARD', name) end
  if listed ~= (SHAPE.swaps and #tickets or 0) then
    broken[#broken + 1] = listed .. ' tickets may be exchanged, and ' .. #tickets .. ' are in work'
  end
  for _, t in ipairs(SHAPE.swaps and tickets or {}) do
    if tonumber(redis.call('ZSCORE', movable(t.version), t.id) or '-1') ~= group_place(t.r, t.group) then
      broken[#broken + 1] = 'ticket ' .. t.id .. ' is not to be exchanged at its place'
    end
  end
end

end
