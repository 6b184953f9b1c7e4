-- Keys, numbers of rows, and the one way in and out of every function that changes something.
-- SUFFIX stands above (written by `library.py`).
-- A partition has a number p, never used twice. Its rows have places 0, 1, 2 ... in it, and numbers that no other row of
-- the queue has: place k * PAGE_ROWS + i has number page * PAGE_ROWS + i, where `pages` (u64 each) says which page is its k-th.
-- Everything about a row lies at its place in strings: `live` (0 cleared, 1 in use, 2 expected), `h:FIELD` (1 produced),
-- `f:FIELD` (chunk id, offset, length, kind), `c:TASK` (1 consumed), and per consumer `r:ID` (1 ready).

local PARTITIONS, PAGES, NUMBERS, CONFIG = 'tq:partitions', 'tq:pages', 'tq:numbers', 'tq:config'
local TRASH, GONE = 'tq:trash', 'tq:gone'
local PAGE_ROWS, ROW_BYTES, ID_BYTES = 256, 24, 12
-- A client repeats a call for at most half a minute.
local ANSWER_SECONDS = 600

local function key(p, part) return 'tq:' .. p .. ':' .. part end

local function refuse(message) error({err = 'MISMATCH ' .. message}) end

local function partition_of(name) return redis.call('HGET', PARTITIONS, name) end

local function number_of(p, field) return tonumber(redis.call('HGET', key(p, 'numbers'), field) or '0') end

-- --- byte strings ---------------------------------------------------------------------------------------------------

local function pad(bytes, length)
  if #bytes == length then return bytes end
  return bytes .. string.rep('\0', length - #bytes)
end

local function range(name, first, count, width)
  width = width or 1
  return pad(redis.call('GETRANGE', name, first * width, (first + count) * width - 1), count * width)
end

local function fill(name, first, count, byte) redis.call('SETRANGE', name, first, string.rep(byte, count)) end

-- Calls `visit(first, count)` for every run of ones; positions count from 1.
local function each_run(flags, visit)
  local from = 1
  while true do
    local first = string.find(flags, '\1', from, true)
    if not first then return end
    from = string.find(flags, '[^\1]', first) or #flags + 1
    visit(first, from - first)
  end
end

local function has_ones(flags) return string.find(flags, '\1', 1, true) ~= nil end

local function count_ones(flags)
  local count = 0
  each_run(flags, function(_, length) count = count + length end)
  return count
end

local function both(a, b)
  if not has_ones(a) then return a end
  if not string.find(b, '[^\1]') then return a end
  if not has_ones(b) then return b end
  local bytes = {}
  for i = 1, #a do bytes[i] = string.byte(a, i) == 1 and string.byte(b, i) == 1 and '\1' or '\0' end
  return table.concat(bytes)
end

local function inverse(flags) return (string.gsub(flags, '.', function(byte) return byte == '\1' and '\0' or '\1' end)) end

local function without(a, b)
  if not has_ones(b) then return a end
  return both(a, inverse(b))
end

-- --- runs of places: {first, count} ---------------------------------------------------------------------------------

local function push_run(runs, first, count)
  local last = runs[#runs]
  if last and last[1] + last[2] == first then
    last[2] = last[2] + count
  else
    runs[#runs + 1] = {first, count}
  end
end

local function size_of(runs)
  local count = 0
  for _, run in ipairs(runs) do count = count + run[2] end
  return count
end

local function gather(name, runs, width)
  local parts = {}
  for i, run in ipairs(runs) do parts[i] = range(name, run[1], run[2], width) end
  return table.concat(parts)
end

local function pack_runs(runs)
  local packed = {}
  for i, run in ipairs(runs) do packed[i] = struct.pack('<I8I4', run[1], run[2]) end
  return table.concat(packed)
end

local function unpack_runs(packed)
  local runs = {}
  for i = 1, #packed, 12 do
    local first, count = struct.unpack('<I8I4', packed, i)
    runs[#runs + 1] = {first, count}
  end
  return runs
end

-- Packed runs of row numbers as runs of places in p; rows of other partitions and unknown ones are left out.
local function places_of(p, packed)
  local runs, owners = {}, {}
  for _, run in ipairs(unpack_runs(packed)) do
    local first, left = run[1], run[2]
    while left > 0 do
      local page = math.floor(first / PAGE_ROWS)
      local within = first - page * PAGE_ROWS
      local count = math.min(left, PAGE_ROWS - within)
      if owners[page] == nil then owners[page] = redis.call('HGET', PAGES, page) or '' end
      local owner, place = string.match(owners[page], '^(%d+):(%d+)$')
      if owner == p then push_run(runs, place * PAGE_ROWS + within, count) end
      first, left = first + count, left - count
    end
  end
  return runs
end

-- The reverse.
local function numbers_of(p, runs)
  local numbers, name = {}, key(p, 'pages')
  for _, run in ipairs(runs) do
    local first, left = run[1], run[2]
    while left > 0 do
      local place = math.floor(first / PAGE_ROWS)
      local within = first - place * PAGE_ROWS
      local count = math.min(left, PAGE_ROWS - within)
      local page = struct.unpack('<I8', redis.call('GETRANGE', name, place * 8, place * 8 + 7))
      push_run(numbers, page * PAGE_ROWS + within, count)
      first, left = first + count, left - count
    end
  end
  return pack_runs(numbers)
end

-- --- partitions -----------------------------------------------------------------------------------------------------

local function extend(p, count)
  local rows = number_of(p, 'rows')
  local have, need = math.ceil(rows / PAGE_ROWS), math.ceil((rows + count) / PAGE_ROWS)
  if need > have then
    local first, pages = redis.call('HINCRBY', NUMBERS, 'page', need - have) - (need - have), {}
    for place = have, need - 1 do
      local page = first + place - have
      redis.call('HSET', PAGES, page, p .. ':' .. place)
      pages[#pages + 1] = struct.pack('<I8', page)
    end
    redis.call('APPEND', key(p, 'pages'), table.concat(pages))
  end
  fill(key(p, 'live'), rows, count, '\2')
  redis.call('HSET', key(p, 'numbers'), 'rows', rows + count)
end

local woken = {}

local function wake(name) woken[name] = true end

-- `expected`: so many rows count as not produced yet from the beginning.
local function make_partition(name, expected)
  local p = partition_of(name)
  if p then return p end
  p = tostring(redis.call('HINCRBY', NUMBERS, 'partition', 1))
  redis.call('HSET', PARTITIONS, name, p)
  redis.call('HSET', key(p, 'numbers'), 'used', 0, 'rows', 0)
  if expected > 0 then extend(p, expected) end
  wake(name)
  return p
end

local function require_partition(name)
  return partition_of(name) or refuse('there is no partition ' .. name)
end

local function new_places(p, count)
  local used, rows = number_of(p, 'used'), number_of(p, 'rows')
  if used + count > rows then extend(p, used + count - rows) end
  fill(key(p, 'live'), used, count, '\1')
  redis.call('HSET', key(p, 'numbers'), 'used', used + count)
  return {{used, count}}
end

-- --- functions ------------------------------------------------------------------------------------------------------

local function rest_of(all, first)
  local args = {}
  for i = first, #all do args[#args + 1] = all[i] end
  return args
end

-- A call of a client: its name, the number of the call, then its arguments. A call that comes again gets its first answer,
-- also one that changed nothing: by then it might change something, and nobody would hear of it.
-- `body` returns the answer and what is kept for that (nil: the answer itself), `replay` makes an answer of it.
-- It refuses before it writes: nothing is rolled back.
local function changing(name, body, replay)
  redis.register_function(name .. SUFFIX, function(_, all)
    woken = {}
    local kept, args = redis.call('GET', 'tq:call:' .. all[1]), rest_of(all, 3)
    local last, call = kept and struct.unpack('<d', kept) or 0, tonumber(all[2])
    -- It was under way while its client gave up, asked again and went on.
    if last > call then refuse('call ' .. call .. ' comes after call ' .. last .. ' of the same client') end
    if last == call then
      local record = cmsgpack.unpack(string.sub(kept, 9))
      return replay and replay(record, args) or record
    end
    local answer, record = body(args)
    local packed = struct.pack('<d', call) .. cmsgpack.pack(record or answer)
    redis.call('SET', 'tq:call:' .. all[1], packed, 'EX', ANSWER_SECONDS)
    for channel in pairs(woken) do redis.call('PUBLISH', 'n:tq:' .. channel, '1') end
    return answer
  end)
end

-- May be repeated as it is.
local function repeatable(name, body)
  redis.register_function(name .. SUFFIX, function(_, args)
    woken = {}
    return body(args)
  end)
end

local function reading(name, body)
  redis.register_function{
    function_name = name .. SUFFIX,
    callback = function(_, args) return body(args) end,
    flags = {'no-writes'},
  }
end
