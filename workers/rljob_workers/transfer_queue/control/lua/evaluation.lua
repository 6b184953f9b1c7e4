-- Evaluation: the numbered samples of one version, scored beside training. Each is free, leased to a life, or has its result.
-- A table, since Lua has room for no more local names. STATE: lineage, version, digest, samples, next, over.
-- KILLS: digest, and by prompt how many deaths it was in work in; ALONE: life -> the suspect prompt that it has. A prompt
-- goes by its first sample. An empty result is of a sample that was set aside with its prompt.
local evaluation = {
  STATE = 'q:eval', AGAIN = 'q:eval_again', LEASES = 'q:eval_leases', RESULTS = 'q:eval_results', KILLS = 'q:eval_kills',
  ALONE = 'q:eval_alone',
}

-- Of this version, by whichever lineage it was begun: a version that was restored has the weights that it had.
function evaluation.is_of(version)
  local begun = redis.call('HGET', evaluation.STATE, 'version')
  return begun and tonumber(begun) == version and is_alive(redis.call('HGET', evaluation.STATE, 'lineage'), version)
end

function evaluation.is_over() return redis.call('HEXISTS', evaluation.STATE, 'over') == 1 end

function evaluation.forget_work()
  redis.call('DEL', evaluation.AGAIN, evaluation.LEASES, evaluation.RESULTS, evaluation.ALONE)
end

function evaluation.forget()
  redis.call('DEL', evaluation.STATE)
  evaluation.forget_work()
end

-- Another digest: the sets are not those that it was begun with, and nothing of it counts. Prompts that were set aside stay so
-- for all versions.
function evaluation.begin(lineage, version, digest, samples)
  evaluation.forget()
  redis.call('HSET', evaluation.STATE, 'lineage', lineage, 'version', version, 'digest', digest, 'samples', samples, 'next', 0)
  if redis.call('HGET', evaluation.KILLS, 'digest') ~= digest then
    redis.call('DEL', evaluation.KILLS)
    redis.call('HSET', evaluation.KILLS, 'digest', digest)
  end
end

function evaluation.is_all_there()
  return redis.call('HLEN', evaluation.RESULTS) >= tonumber(redis.call('HGET', evaluation.STATE, 'samples') or '0')
end

-- The first sample of its prompt, and how many the prompt has: the digest ends in samples/samples of a prompt, set by set.
function evaluation.prompt_of(sample)
  local begin, number = 0, tonumber(sample)
  for samples, each in string.gmatch(redis.call('HGET', evaluation.STATE, 'digest'), '(%d+)/(%d+)') do
    local size = tonumber(each)
    if number < begin + tonumber(samples) then return number - (number - begin) % size, size end
    begin = begin + tonumber(samples)
  end
  return number, 1
end

function evaluation.deaths_of(prompt) return tonumber(redis.call('HGET', evaluation.KILLS, prompt) or '0') end

-- All samples of a prompt are scored: what it was in work in died of something else.
function evaluation.acquit(prompt, size)
  if redis.call('HEXISTS', evaluation.KILLS, prompt) == 0 then return end
  for sample = prompt, prompt + size - 1 do
    if redis.call('HEXISTS', evaluation.RESULTS, sample) == 0 then return end
  end
  redis.call('HDEL', evaluation.KILLS, prompt)
end

function evaluation.held(owner)
  local leases, held = redis.call('HGETALL', evaluation.LEASES), {}
  for i = 1, #leases, 2 do
    if leases[i + 1] == owner then held[#held + 1] = leases[i] end
  end
  return held
end

function work.evaluates(owner) return #evaluation.held(owner) > 0 end

function work.evaluates_alone(owner)
  return redis.call('HEXISTS', evaluation.ALONE, owner) == 1 and work.evaluates(owner)
end

-- As `kill_tickets`: the owner died, or its engine, with these samples in work. A death is one of each of their prompts.
function evaluation.kill(owner, samples)
  local alone, counted = tonumber(redis.call('HGET', evaluation.ALONE, owner) or '-1'), {}
  for _, sample in ipairs(samples) do
    local prompt = evaluation.prompt_of(sample)
    if not counted[prompt] then
      counted[prompt] = true
      redis.call('HSET', evaluation.KILLS, prompt, suspicion.after_death(evaluation.deaths_of(prompt), prompt == alone))
    end
    redis.call('HDEL', evaluation.LEASES, sample)
    redis.call('ZADD', evaluation.AGAIN, sample, sample)
  end
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

function evaluation.lease(owner, sample)
  redis.call('ZREM', evaluation.AGAIN, sample)
  redis.call('HSET', evaluation.LEASES, sample, owner)
end

function evaluation.next()
  local next_sample = tonumber(redis.call('HGET', evaluation.STATE, 'next'))
  if next_sample >= tonumber(redis.call('HGET', evaluation.STATE, 'samples')) then return nil end
  redis.call('HSET', evaluation.STATE, 'next', next_sample + 1)
  redis.call('ZADD', evaluation.AGAIN, next_sample, next_sample)
  return tostring(next_sample)
end

-- Free samples of no suspect prompt, up to `limit`; of a life that has nothing else in work, those of one suspect prompt. The
-- second value: whether samples were set aside, with their prompt.
function evaluation.take(owner, limit)
  local given, suspect, put_aside, at = {}, nil, false, 1
  local again = redis.call('ZRANGE', evaluation.AGAIN, 0, -1)
  while #given < limit do
    local sample = again[at] or evaluation.next()
    at = at + 1
    if not sample then break end
    local prompt = evaluation.prompt_of(sample)
    local deaths = evaluation.deaths_of(prompt)
    if suspicion.is_set_aside(deaths) then
      redis.call('ZREM', evaluation.AGAIN, sample)
      redis.call('HSET', evaluation.RESULTS, sample, '')
      put_aside = true
    elseif suspicion.is_suspect(deaths) then
      suspect = suspect or prompt
    else
      evaluation.lease(owner, sample)
      given[#given + 1] = sample
    end
  end
  if suspect and #given == 0 and work.count(owner) == 0 and not work.evaluates(owner) then
    local _, size = evaluation.prompt_of(suspect)
    for sample = suspect, suspect + size - 1 do
      if #given < limit and redis.call('ZSCORE', evaluation.AGAIN, sample) then
        evaluation.lease(owner, sample)
        given[#given + 1] = tostring(sample)
      end
    end
    redis.call('HSET', evaluation.ALONE, owner, suspect)
  elseif #given > 0 then
    redis.call('HDEL', evaluation.ALONE, owner)
  end
  return given, put_aside
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
  for _, t in ipairs(tickets_held(owner)) do
    if t.alone == 1 then limit = 0 end
  end
  if work.evaluates_alone(owner) then limit = 0 end
  local given, put_aside = evaluation.take(owner, limit)
  if put_aside and evaluation.is_all_there() then wake('scored') end
  return {'S', table.concat(given, ' ')}, (begins or put_aside or returned + #given > 0) or nil
end)

-- Version, then sample and result of each. Refused is what the life has no lease of. Gives how many were taken.
rank_call('put_evaluation', function(args, owner)
  local taken = 0
  if evaluation.is_of(tonumber(args[1])) then
    for i = 2, #args, 2 do
      if redis.call('HGET', evaluation.LEASES, args[i]) == owner then
        redis.call('HDEL', evaluation.LEASES, args[i])
        redis.call('HSET', evaluation.RESULTS, args[i], args[i + 1])
        evaluation.acquit(evaluation.prompt_of(args[i]))
        taken = taken + 1
      end
    end
    if evaluation.is_all_there() then wake('scored') end
  end
  return {taken}, true
end)

-- 1 where an engine died of one of the samples, which follow.
rank_call('return_evaluation', function(args, owner)
  local mine = {}
  for i = 2, #args do
    if redis.call('HGET', evaluation.LEASES, args[i]) == owner then mine[#mine + 1] = args[i] end
  end
  if args[1] == '1' then
    evaluation.kill(owner, mine)
  else
    for _, sample in ipairs(mine) do
      redis.call('HDEL', evaluation.LEASES, sample)
      redis.call('ZADD', evaluation.AGAIN, sample, sample)
    end
  end
  return {}, true
end)

-- Lineage and version (-1: none is begun, or it is dead), samples, results, whether it is over, digest.
read_call('evaluation', function()
  local begun = tonumber(redis.call('HGET', evaluation.STATE, 'version') or '-1')
  if not evaluation.is_of(begun) then return {0, -1, 0, 0, 0, ''} end
  return {
    tonumber(redis.call('HGET', evaluation.STATE, 'lineage')), begun, tonumber(redis.call('HGET', evaluation.STATE, 'samples')),
    redis.call('HLEN', evaluation.RESULTS), evaluation.is_over() and 1 or 0,
    redis.call('HGET', evaluation.STATE, 'digest'),
  }
end)

-- Sample, result, sample, result ...
read_call('evaluation_results', function() return redis.call('HGETALL', evaluation.RESULTS) end)

-- The samples that have a result.
read_call('evaluation_scored', function() return redis.call('HKEYS', evaluation.RESULTS) end)

-- Version. Its results were read, and reported durably.
admin_call('end_evaluation', function(args)
  if not evaluation.is_of(tonumber(args[1])) or evaluation.is_over() then return {} end
  redis.call('HSET', evaluation.STATE, 'over', 1)
  evaluation.forget_work()
  wake('evaluated')
  return {}, true
end)
