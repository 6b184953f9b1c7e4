-- Evaluation: the numbered samples of one version, scored beside training. Each is free, leased to a life, or has its result.
-- A table, since Lua has room for no more local names. STATE: lineage, version, digest, samples, next, over.
local evaluation = {STATE = 'q:eval', AGAIN = 'q:eval_again', LEASES = 'q:eval_leases', RESULTS = 'q:eval_results'}

-- Of this version, by whichever lineage it was begun: a version that was restored has the weights that it had.
function evaluation.is_of(version)
  local begun = redis.call('HGET', evaluation.STATE, 'version')
  return begun and tonumber(begun) == version and is_alive(redis.call('HGET', evaluation.STATE, 'lineage'), version)
end

function evaluation.is_over() return redis.call('HEXISTS', evaluation.STATE, 'over') == 1 end

function evaluation.forget_work() redis.call('DEL', evaluation.AGAIN, evaluation.LEASES, evaluation.RESULTS) end

function evaluation.forget()
  redis.call('DEL', evaluation.STATE)
  evaluation.forget_work()
end

-- Another digest: the sets are not those that it was begun with, and nothing of it counts.
function evaluation.begin(lineage, version, digest, samples)
  evaluation.forget()
  redis.call('HSET', evaluation.STATE, 'lineage', lineage, 'version', version, 'digest', digest, 'samples', samples, 'next', 0)
end

-- Of a life, or without one of all; gives how many.
function evaluation.give_back(owner, is_kept)
  local leases, count = redis.call('HGETALL', evaluation.LEASES), 0
  for i = 1, #leases, 2 do
    if (not owner or leases[i + 1] == owner) and not (is_kept and is_kept[leases[i]]) then
      redis.call('HDEL', evaluation.LEASES, leases[i])
      redis.call('ZADD', evaluation.AGAIN, leases[i], leases[i])
      count = count + 1
    end
  end
  return count
end

-- When an epoch begins, and all lives with leases are over.
function evaluation.restore()
  local version = redis.call('HGET', evaluation.STATE, 'version')
  if not version then return end
  if evaluation.is_of(tonumber(version)) then evaluation.give_back() else evaluation.forget() end
end

function evaluation.take()
  local again = redis.call('ZPOPMIN', evaluation.AGAIN)
  if #again > 0 then return again[1] end
  local next_sample = tonumber(redis.call('HGET', evaluation.STATE, 'next'))
  if next_sample >= tonumber(redis.call('HGET', evaluation.STATE, 'samples')) then return nil end
  redis.call('HSET', evaluation.STATE, 'next', next_sample + 1)
  return tostring(next_sample)
end

-- Lineage and version that the engine holds, digest of the sets, their samples, how many are wanted, then what the life has in
-- hand: what it was given beyond that, in an answer that never came, is given back first. W: not this version's turn; O: over.
rank_call('claim_evaluation', function(args, owner)
  local lineage, version, limit, held = args[1], tonumber(args[2]), tonumber(args[5]), {}
  if not is_alive(lineage, version) or version ~= meta_number('published') then return {'W'} end
  local goes_on = evaluation.is_of(version)
  if goes_on and evaluation.is_over() then return {'O'} end
  local begins = not goes_on or redis.call('HGET', evaluation.STATE, 'digest') ~= args[3]
  if begins then evaluation.begin(lineage, version, args[3], args[4]) end
  for i = 6, #args do held[args[i]] = true end
  local returned = evaluation.give_back(owner, held)
  local given = {}
  while #given < limit do
    local sample = evaluation.take()
    if not sample then break end
    redis.call('HSET', evaluation.LEASES, sample, owner)
    given[#given + 1] = sample
  end
  return {'S', table.concat(given, ' ')}, (begins or returned + #given > 0) or nil
end)

-- Version, then sample and result of each. Refused is what the life has no lease of. Gives how many were taken.
rank_call('put_evaluation', function(args, owner)
  local taken = 0
  if evaluation.is_of(tonumber(args[1])) then
    for i = 2, #args, 2 do
      if redis.call('HGET', evaluation.LEASES, args[i]) == owner then
        redis.call('HDEL', evaluation.LEASES, args[i])
        redis.call('HSET', evaluation.RESULTS, args[i], args[i + 1])
        taken = taken + 1
      end
    end
  end
  return {taken}, true
end)

rank_call('return_evaluation', function(args, owner)
  for _, sample in ipairs(args) do
    if redis.call('HGET', evaluation.LEASES, sample) == owner then
      redis.call('HDEL', evaluation.LEASES, sample)
      redis.call('ZADD', evaluation.AGAIN, sample, sample)
    end
  end
  return {}, true
end)

-- Lineage and version (-1: none is begun, or it is dead), samples, results, whether it is over.
read_call('evaluation', function()
  local begun = tonumber(redis.call('HGET', evaluation.STATE, 'version') or '-1')
  if not evaluation.is_of(begun) then return {0, -1, 0, 0, 0} end
  return {
    tonumber(redis.call('HGET', evaluation.STATE, 'lineage')), begun, tonumber(redis.call('HGET', evaluation.STATE, 'samples')),
    redis.call('HLEN', evaluation.RESULTS), evaluation.is_over() and 1 or 0,
  }
end)

read_call('evaluation_results', function() return redis.call('HVALS', evaluation.RESULTS) end)

-- Version. Its results were read, and reported durably.
admin_call('end_evaluation', function(args)
  if not evaluation.is_of(tonumber(args[1])) or evaluation.is_over() then return {} end
  redis.call('HSET', evaluation.STATE, 'over', 1)
  evaluation.forget_work()
  return {}, true
end)
