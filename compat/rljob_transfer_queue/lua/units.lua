-- Which servers are the queue's storage units: every client must mean the same ones in the same order.
-- `tq:units`: `count`; `at:ADDRESS` -> index of the unit that clients found there; `of:MARK` -> index that a mark was drawn for
-- ('' when the queue was given up); `in:INDEX` -> the mark in force, the only one with which rows are committed.
-- A unit that was started anew is empty. It is marked again by clients whose address for it is known, so that no other empty
-- server takes its place; others wait until it has a mark.

local UNITS = 'tq:units'
local SAME = '. Name the same storage units in the same order in every process; for other ones, close() the queue where it was set up,'
  .. ' or empty all servers (FLUSHALL)'

local function addresses_of(index)
  local found, all = {}, redis.call('HGETALL', UNITS)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 3) == 'at:' and all[i + 1] == index then found[#found + 1] = string.sub(all[i], 4) end
  end
  table.sort(found)
  return table.concat(found, ', ')
end

local function in_force(index) return redis.call('HGET', UNITS, 'in:' .. index) end

local function called(index, address) return 'storage unit ' .. index .. ' (' .. address .. ')' end

local function require_place(address, index)
  local known = redis.call('HGET', UNITS, 'at:' .. address)
  if known and known ~= index then
    refuse(called(index, address) .. ' is storage unit ' .. known .. ' of this queue' .. SAME)
  end
  return known
end

-- The addresses of all units, in the client's order; the first client says which there are.
repeatable('meet', function(addresses)
  if redis.call('EXISTS', 'q:meta') == 1 then
    refuse('this control Redis belongs to a job, whose coordinator would delete our rows. Use servers of your own')
  end
  local seen, count = {}, redis.call('HGET', UNITS, 'count')
  if count and tonumber(count) ~= #addresses then
    refuse('this client names ' .. #addresses .. ' storage units, and this queue has ' .. count .. SAME)
  end
  for i, address in ipairs(addresses) do
    if seen[address] then refuse(called(i - 1, address) .. ' is named twice' .. SAME) end
    seen[address] = true
    require_place(address, tostring(i - 1))
  end
  if count then return {} end
  redis.call('HSET', UNITS, 'count', #addresses)
  for i, address in ipairs(addresses) do redis.call('HSET', UNITS, 'at:' .. address, i - 1) end
  return {}
end)

-- index, address, the mark that was found there ('' for none), a new one. Answers `ours`, `mark` (with the new one, then ask
-- again), or `wait` (others must mark it first) with the addresses that are known.
repeatable('admit_unit', function(args)
  local index, address, mark, fresh = args[1], args[2], args[3], args[4]
  local known, force = require_place(address, index), in_force(index)
  local owner = mark == '' and '' or redis.call('HGET', UNITS, 'of:' .. mark)
  if not owner then
    refuse(called(index, address) .. ' belongs to another queue or job, or is not the server that this queue knows as '
      .. addresses_of(index) .. SAME)
  end
  if owner == '' then
    if force and not known then return {'wait', addresses_of(index)} end
    redis.call('HSET', UNITS, 'of:' .. (mark == '' and fresh or mark), index)
    if mark == '' then return {'mark', fresh} end
    owner = index
  end
  if owner ~= index then refuse(called(index, address) .. ' is storage unit ' .. owner .. ' of this queue' .. SAME) end
  redis.call('HSET', UNITS, 'at:' .. address, index, 'in:' .. index, mark)
  if force and force ~= mark then redis.call('HDEL', UNITS, 'of:' .. force) end
  return {'ours', mark}
end)

-- The next client may name others; what is marked may be any unit of that list.
local function forget_units()
  local all = redis.call('HGETALL', UNITS)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 3) == 'of:' then
      redis.call('HSET', UNITS, all[i], '')
    else
      redis.call('HDEL', UNITS, all[i])
    end
  end
end

-- Bytes of a commit lie on units that are in force: whoever reads them asks the same servers.
local function require_in_force(fields)
  for _, field in ipairs(fields) do
    for _, line in ipairs(field.lines) do
      local index, mark = string.match(line, '^(%d+)|(%d+)|')
      if in_force(index) ~= mark then
        error({err = 'STALEUNIT storage unit ' .. index .. ' has another mark than when these bytes went there'})
      end
    end
  end
end
