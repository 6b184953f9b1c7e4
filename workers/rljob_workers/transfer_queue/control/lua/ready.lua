-- Ready lists: what a task can have, in the order in which it became ready: rows, with policy Group groups, and with policy
-- Partition all rows of the partition as one.
-- `q:TASK` of a partition is a list. Where a training task makes several optimizer steps of a partition, it is a sorted
-- set by step, then by the change that made the row ready. A row's step is fixed before the row is generated: steps cut
-- as rows become ready would begin with the short answers.

-- A list cut into lists of at most 1000 entries, which a command takes at once: Lua's stack has room for 8000.
local function portions(values)
  local cut = {}
  for i = 1, #values, 1000 do cut[#cut + 1] = {unpack(values, i, math.min(i + 999, #values))} end
  return cut
end

-- A table, since a library has room for 200 local names.
local ready = {}

do

-- Scores of one step; below it the number of the change, which may begin again: that costs an order, no row.
local STEP = 2 ^ 32

-- Groups that stand next to each other go to different steps: Fisher and Yates, by the generator of Park and Miller
-- (1993), whose seed is the partition alone. Every server and every run of the job shuffles alike.
local function shuffled(name)
  local places, state = {}, tonumber(string.sub(redis.sha1hex(name), 1, 7), 16) + 1
  for group = 0, SHAPE.batch - 1 do places[group] = group end
  for last = SHAPE.batch - 1, 1, -1 do
    state = state * 48271 % 2147483647
    local other = state % (last + 1)
    places[last], places[other] = places[other], places[last]
  end
  return places
end

-- Shuffles of the partitions in hand.
local known, num_known = {}, 0

local function places_of(r)
  local name = 'train_' .. r
  if not known[name] then
    if num_known > SHAPE.staleness + 1 then known, num_known = {}, 0 end
    known[name], num_known = shuffled(name), num_known + 1
  end
  return known[name]
end

local function step_of(places, task, entry)
  if task.policy == 'Group' then return math.floor(places[entry] * SHAPE.samples / task.step_rows) end
  local group = math.floor(entry / SHAPE.samples)
  return math.floor((places[group] * SHAPE.samples + entry - group * SHAPE.samples) / task.step_rows)
end

-- How many rows an entry stands for: entry e has the rows from e * span on.
function ready.span(task)
  if task.policy == 'Partition' then return SHAPE.rows end
  return task.policy == 'Group' and SHAPE.samples or 1
end

function ready.entries_of(task, rows)
  local span, entries = ready.span(task), {}
  for i = 1, #rows, span do entries[#entries + 1] = math.floor(rows[i] / span) end
  return entries
end

function ready.rows_of(task, entries)
  local span, rows = ready.span(task), {}
  for _, entry in ipairs(entries) do
    for j = 0, span - 1 do rows[#rows + 1] = tonumber(entry) * span + j end
  end
  return rows
end

local function list_of(r, task) return key(r, 'q:' .. task.name) end

local function as_rows(task, entries) return entries * ready.span(task) end

local function entry_of(member) return struct.unpack('>I4', member) end

-- Behind those that are there.
function ready.push(r, task, entries)
  if task.steps == 1 then
    for _, some in ipairs(portions(entries)) do redis.call('RPUSH', list_of(r, task), unpack(some)) end
    return
  end
  local places, change, scored = places_of(r), meta_number('seq') % STEP, {}
  for i, entry in ipairs(entries) do
    scored[2 * i - 1] = step_of(places, task, entry) * STEP + change
    scored[2 * i] = struct.pack('>I4', entry)
  end
  for _, some in ipairs(portions(scored)) do redis.call('ZADD', list_of(r, task), unpack(some)) end
end

-- How many rows of all steps are listed.
function ready.rows(r, task)
  return as_rows(task, redis.call(task.steps == 1 and 'LLEN' or 'ZCARD', list_of(r, task)))
end

function ready.rows_of_step(r, task, step)
  if task.steps == 1 then return ready.rows(r, task) end
  return as_rows(task, redis.call('ZCOUNT', list_of(r, task), step * STEP, '(' .. string.format('%.0f', (step + 1) * STEP)))
end

-- The first so many entries of a step.
function ready.first(r, task, step, number)
  if task.steps == 1 then return redis.call('LRANGE', list_of(r, task), 0, number - 1) end
  local entries = redis.call('ZRANGE', list_of(r, task), step * STEP, '+inf', 'BYSCORE', 'LIMIT', 0, number)
  for i, member in ipairs(entries) do entries[i] = entry_of(member) end
  return entries
end

function ready.drop_first(r, task, step, number)
  if task.steps == 1 then
    redis.call('LTRIM', list_of(r, task), number, -1)
    return
  end
  local before = redis.call('ZCOUNT', list_of(r, task), '-inf', '(' .. string.format('%.0f', step * STEP))
  redis.call('ZREMRANGEBYRANK', list_of(r, task), before, before + number - 1)
end

-- All entries, and those of them that stand under a step that is not theirs.
function ready.all(r, task)
  if task.steps == 1 then return redis.call('LRANGE', list_of(r, task), 0, -1), {} end
  local scored, entries, misplaced = redis.call('ZRANGE', list_of(r, task), 0, -1, 'WITHSCORES'), {}, {}
  for i = 1, #scored, 2 do
    local entry = entry_of(scored[i])
    entries[#entries + 1] = entry
    if math.floor(tonumber(scored[i + 1]) / STEP) ~= step_of(places_of(r), task, entry) then misplaced[#misplaced + 1] = entry end
  end
  return entries, misplaced
end

-- The step of slice `index` of so many rows; nil where it would have rows of two.
function ready.step_of_slice(task, index, num_rows)
  local first = index * num_rows
  local step = math.floor(first / task.step_rows)
  if task.steps > 1 and math.floor((first + num_rows - 1) / task.step_rows) ~= step then return nil end
  return step
end

end
