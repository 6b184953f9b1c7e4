-- The curriculum, in jobs that have one: which row of the data each draw is of, and what the samples of each row have earned.
-- A row is chosen by a rank, once for each draw: the first choice stands for all ranks, and for as long as the draw may return.

-- A table, since a library has room for 200 local names.
local curriculum = {}

do

local CHOSEN, RATES, RATE_BYTES, AT_ONCE = 'q:chosen', 'q:rates', 24, 1000

-- Of each row: draws that are over, samples that were scored, those that passed, nothing, the sum of their rewards.
local RATE = '<I4I4I4I4d'

local function add(row, draws, samples, passed, total)
  local packed = redis.call('GETRANGE', RATES, row * RATE_BYTES, (row + 1) * RATE_BYTES - 1)
  if packed ~= '' then
    local before = {struct.unpack(RATE, packed)}
    draws, samples, passed, total = draws + before[1], samples + before[2], passed + before[3], total + before[5]
  end
  redis.call('SETRANGE', RATES, row * RATE_BYTES, struct.pack(RATE, draws, samples, passed, 0, total))
end

-- A draw is over. `scored`: samples that have a score, those that passed, the sum of their rewards; nil or '': none has one.
function curriculum.count(draw, scored)
  local row = SHAPE.curriculum and redis.call('HGET', CHOSEN, draw)
  if not row then return end
  if not scored or scored == '' then
    add(tonumber(row), 1, 0, 0, 0)
  else
    local samples, passed, total = struct.unpack('<I4I4d', scored)
    add(tonumber(row), 1, samples, passed, total)
  end
end

-- Draws that a rank chooses for at once.
local function window_of(draw) return math.floor(draw / SHAPE.batch) end

-- Draws of rows that are recorded never return: what was chosen for them goes, by windows. A rank chooses for all draws of a
-- window that have no row, so that one that is over would be chosen for again beside one that returns.
function curriculum.forget_recorded()
  if redis.call('EXISTS', CHOSEN) == 0 then return end
  local returning, drawn = {}, window_of(meta_number('cursor'))
  for _, draw in ipairs(redis.call('ZRANGE', FRONT, 0, -1)) do returning[window_of(draw)] = true end
  for _, r in ipairs(redis.call('ZRANGE', PARTITIONS, 0, -1)) do
    for _, packed in ipairs(redis.call('HVALS', key(r, 'groups'))) do
      local group = cmsgpack.unpack(packed)
      returning[window_of(group[3])] = true
      for _, draw in ipairs(group[5]) do returning[window_of(draw)] = true end
    end
  end
  for _, draw in ipairs(redis.call('HKEYS', CHOSEN)) do
    local window = window_of(draw)
    if window < drawn and not returning[window] then redis.call('HDEL', CHOSEN, draw) end
  end
end

-- For a checkpoint: draw, row, draw, row ..., and the rates as `pass_rates` gives them. Empty where there never was a curriculum.
function curriculum.saved()
  if redis.call('EXISTS', CHOSEN, RATES) == 0 then return {} end
  return {redis.call('HGETALL', CHOSEN), redis.call('GET', RATES) or ''}
end

-- Rates that could be packed are not in it.
function curriculum.is_table(saved)
  return saved == nil
    or type(saved) == 'table' and type(saved.chosen) == 'table' and type(saved.rates) == 'table' and next(saved.rates) == nil
end

-- What a checkpoint's table says takes the place of what is here. `rates`: packed, '' for none.
function curriculum.adopt(saved, rates)
  redis.call('DEL', CHOSEN, RATES)
  if not saved then return end
  for _, one in ipairs(saved.chosen) do redis.call('HSET', CHOSEN, one[1], one[2]) end
  if rates ~= '' then redis.call('SET', RATES, rates) end
end

-- First draw, number of draws. Gives their rows, and FFFFFFFF where none is chosen.
read_call('chosen', function(args)
  local first, last, rows = tonumber(args[1]), tonumber(args[1]) + tonumber(args[2]) - 1, {}
  for from = first, last, AT_ONCE do
    local draws = {}
    for draw = from, math.min(from + AT_ONCE - 1, last) do draws[#draws + 1] = draw end
    for _, row in ipairs(redis.call('HMGET', CHOSEN, unpack(draws))) do
      rows[#rows + 1] = struct.pack('<I4', row and tonumber(row) or 0xFFFFFFFF)
    end
  end
  return {table.concat(rows)}
end)

-- Draws, and rows for them. Gives the rows that stand: a draw that has one keeps it.
rank_call('choose', function(args)
  local rows = {}
  for at = 1, #args[1], 4 do
    local draw, row = struct.unpack('<I4', args[1], at), struct.unpack('<I4', args[2], at)
    if redis.call('HSETNX', CHOSEN, draw, row) == 0 then row = tonumber(redis.call('HGET', CHOSEN, draw)) end
    rows[#rows + 1] = struct.pack('<I4', row)
  end
  return {table.concat(rows)}, true
end)

read_call('pass_rates', function() return {redis.call('GET', RATES) or ''} end)

end
