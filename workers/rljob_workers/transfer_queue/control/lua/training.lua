-- Training: how far each training task has come. Every one consumes every partition, and one of them publishes: version
-- r + 1 needs that task alone to have consumed train_r. The others may be behind it. Capacity, records and what a loss
-- means go by what all of them have consumed.

-- A table, since a library has room for 200 local names.
local training = {tasks = {}}

do

-- A library is loaded without the usual globals (ipairs).
for place = 1, #SHAPE.tasks do
  if SHAPE.tasks[place].kind == 'Training' then training.tasks[#training.tasks + 1] = SHAPE.tasks[place] end
end

-- What is missing of partition r for the task, in words; nil: the task has consumed all its rows.
function training.missing(r, task)
  if redis.call('ZSCORE', PARTITIONS, r) == false then return 'no row of it was generated' end
  local done = tonumber(redis.call('HGET', key(r, 'done'), task.name) or '0')
  if done < SHAPE.rows then return done .. ' of ' .. SHAPE.rows .. ' rows are consumed by ' .. task.name end
  return nil
end

-- What is missing of partition r before the version behind it can be published.
function training.missing_to_publish(r)
  for _, task in ipairs(training.tasks) do
    local why = task.publishes and training.missing(r, task)
    if why then return why end
  end
  return nil
end

-- What is missing of partition r before a record may lie behind it.
function training.missing_to_record(r)
  for _, task in ipairs(training.tasks) do
    local why = training.missing(r, task)
    if why then return why end
  end
  return nil
end

-- The first partition from `low` on, and below `high`, that the task has not consumed; else `high`. By halves, of the set
-- of finished partitions: it follows from the counts of rows, and a task need not come to partitions in their order.
local function first_missing(task, low, high)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZCOUNT', 'q:finished:' .. task.name, low, middle) == middle - low + 1 then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- The first partition that is not done with: some training task has to consume it, or it is not published. Never counted
-- up and down.
function training.first()
  local first = meta_number('published')
  for _, task in ipairs(training.tasks) do
    if not task.publishes then first = first_missing(task, meta_number('recorded'), first) end
  end
  return first
end

-- Whether rows of the group that lose the fields of `bad` (per row) cannot wait until they are made again: the task that
-- publishes has them, so that the weights which made the fields may be gone by then, and another has yet to train on them.
function training.outlives_weights(r, group, bad)
  if #training.tasks == 1 then return false end
  local first, states, publisher = group * SHAPE.samples, {}, nil
  for _, task in ipairs(training.tasks) do
    states[task.name] = redis.call('GETRANGE', key(r, 's:' .. task.name), first, first + SHAPE.samples - 1)
    if task.publishes then publisher = task.name end
  end
  for _, task in ipairs(training.tasks) do
    for j = 0, SHAPE.samples - 1 do
      if task.name ~= publisher and bit.band(bad[j], task.needs) ~= 0 and string.sub(states[task.name], j + 1, j + 1) ~= 'd'
        and string.find(string.sub(states[publisher], j + 1, j + 1), '[cd]') then
        return true
      end
    end
  end
  return false
end

end
