-- Keys, refusals, and the one way in and out of every function that changes something.
-- SHAPE and SUFFIX stand above (written by `library.py`).

local META, ALIVE, LIVE, RANKS, CALLS = 'q:meta', 'q:alive', 'q:live', 'q:ranks', 'q:calls'
local PARTITIONS, UNITS, GARBAGE = 'q:partitions', 'q:units', 'q:garbage'
local LEASES, LEASE = 'q:leases', 'q:lease'
local TICKETS, AGAIN, OPEN, FRONT, KILLS = 'q:tickets', 'q:again', 'q:open', 'q:front', 'q:kills'
local ASIDE, DROPPED, MISSED, LOST_CHUNKS = 'q:aside', 'q:dropped', 'q:missed', 'q:lost_chunks'
local ROW_BYTES, WEIGHT_BYTES, ID_BYTES = 28, 16, 12

-- What is saved of groups that are not finished (`partials.lua`). A table, since Lua has room for no more local names.
local partials = {}

local function key(r, part) return 'p:' .. r .. ':' .. part end

-- Chunks on a unit that nothing refers to any more. A list for each: one that is away keeps only its own waiting.
local function dead_on(unit) return 'q:dead:' .. unit end

local function refuse(code, message) error({err = code .. ' ' .. message}) end

local function meta(field) return redis.call('HGET', META, field) end

local function meta_number(field) return tonumber(redis.call('HGET', META, field) or '0') end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The version up to which `lineage` is alive; nil: dead as a whole; -1: no bound.
local function is_alive(lineage, version)
  local bound = tonumber(redis.call('HGET', ALIVE, lineage) or '-2')
  return bound == -1 or version <= bound
end

-- Whether tokens of these weights (16 bytes a sample: oldest and newest) stand in a restore of `version`.
local function weights_stand(weights, version)
  local last
  for i = 1, #weights, WEIGHT_BYTES do
    local span = string.sub(weights, i, i + WEIGHT_BYTES - 1)
    if span ~= last then
      local oldest_lineage, oldest, newest_lineage, newest = struct.unpack('<i4i4i4i4', span)
      if newest > version or not (is_alive(oldest_lineage, oldest) and is_alive(newest_lineage, newest)) then return false end
      last = span
    end
  end
  return true
end

local function require_open(run)
  if meta('run') ~= run then
    refuse('NOTOPEN', 'the control Redis was started anew and the coordinator has not opened it')
  end
end

local function require_live(epoch, incarnation)
  local current = meta('epoch') or '0'
  if current ~= epoch then
    refuse('FENCED', 'epoch ' .. epoch .. ' is over; the current epoch is ' .. current)
  end
  if redis.call('HEXISTS', LIVE, incarnation) == 0 then
    refuse('FENCED', 'incarnation ' .. incarnation .. ' is not live in epoch ' .. epoch)
  end
end

-- The answer that this client's call already got; nil for a new call.
local function earlier_answer(client, call)
  local kept = redis.call('HGET', CALLS, client)
  if not kept then return nil end
  local number = struct.unpack('<d', kept)
  if number == call then return cmsgpack.unpack(string.sub(kept, 9)) end
  if number > call then
    refuse('STALECALL', 'call ' .. call .. ' of ' .. client .. ' comes after its call ' .. number)
  end
  return nil
end

-- Earlier calls of this client are refused from here on, and this one gets the same answer again.
local function keep_answer(client, call, record)
  redis.call('HSET', CALLS, client, struct.pack('<d', call) .. cmsgpack.pack(record))
end

local function finish(client, call, record)
  keep_answer(client, call, record)
  return redis.call('HINCRBY', META, 'seq', 1)
end

-- Collects the channels to be told at the end of a function, each once.
local woken = {}

local function wake(channel) woken[channel] = true end

local function tell()
  for channel in pairs(woken) do redis.call('PUBLISH', 'n:' .. channel, '1') end
  woken = {}
end

-- `body(args)` gives the answer (a list) and what is kept for a retry: true for the answer itself, a list that `replay`
-- turns into the answer, or nil where nothing was changed. It refuses before it writes: nothing is rolled back.
local function register(name, admit, first, body, replay)
  redis.register_function(name .. SUFFIX, function(_, all)
    woken = {}
    local client, call = admit(all)
    local args = {}
    for i = first, #all do args[#args + 1] = all[i] end
    local earlier = earlier_answer(client, call)
    if earlier then
      local answer = replay and replay(earlier, args) or earlier
      table.insert(answer, 1, meta_number('seq'))
      return answer
    end
    local answer, record = body(args, client, all)
    local seq
    if record then seq = finish(client, call, record == true and answer or record) else seq = meta_number('seq') end
    tell()
    local reply = {seq}
    for i = 1, #answer do reply[i + 1] = answer[i] end
    return reply
  end)
end

-- A call of a rank: run id, epoch, incarnation, call number, then its own arguments.
local function rank_call(name, body, replay)
  register(name, function(all)
    require_open(all[1])
    require_live(all[2], all[3])
    return all[3], tonumber(all[4])
  end, 5, body, replay)
end

local function refuse_replaced(admin)
  refuse('REPLACED', 'another coordinator has taken over; this one (' .. admin .. ') must stop')
end

-- A call of the coordinator: run id, the queue admin's name, call number. A queue admin that was replaced is fenced.
local function admin_call(name, body, admit_closed)
  register(name, function(all)
    if not admit_closed then require_open(all[1]) end
    if meta('admin') ~= all[2] then refuse_replaced(all[2]) end
    return all[2], tonumber(all[3])
  end, 4, body)
end

-- Changes nothing; works on a server that is not open.
local function read_call(name, body)
  redis.register_function{
    function_name = name .. SUFFIX,
    callback = function(_, args) return body(args) end,
    flags = {'no-writes'},
  }
end
