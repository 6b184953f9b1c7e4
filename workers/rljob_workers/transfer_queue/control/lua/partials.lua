-- Partials: what was generated of groups that are not finished. By prompt, since a ticket's place may change and another
-- rank goes on with it: the weights of its samples, 16 bytes each, and the chunk that has the bytes. It lasts as long as its
-- prompt is to be generated. One whose bytes are gone is none: it costs tokens, and nothing waits for it. Jobs without
-- `rollout.partial` look for none.

do -- its names are its own: a library has room for 200

partials.KEY = 'q:partials'

local function load_partial(prompt)
  local packed = redis.call('HGET', partials.KEY, prompt)
  if not packed then return nil end
  local p = cmsgpack.unpack(packed)
  return {weights = p[1], chunk = p[2]}
end

local function all_partials()
  local all, found = redis.call('HGETALL', partials.KEY), {}
  for i = 1, #all, 2 do
    local p = cmsgpack.unpack(all[i + 1])
    found[#found + 1] = {prompt = all[i], weights = p[1], chunk = p[2]}
  end
  return found
end

local function drop(prompt, p)
  redis.call('HDEL', partials.KEY, prompt)
  discard(p.chunk)
end

function partials.forget(prompt)
  local p = SHAPE.partials and load_partial(prompt)
  if p then drop(prompt, p) end
end

function partials.forget_all()
  for _, p in ipairs(all_partials()) do drop(p.prompt, p) end
end

local function keep(prompt, weights, chunk)
  partials.forget(prompt)
  redis.call('HSET', partials.KEY, prompt, cmsgpack.pack({weights, chunk}))
end

-- Whether the tokens may be put into train_r; where groups are carried on, those that are too old for it are not trained on.
local function may_be_put(p, r)
  for i = 1, #p.weights, WEIGHT_BYTES do
    local oldest_lineage, oldest, newest_lineage, newest = struct.unpack('<i4i4i4i4', p.weights, i)
    if not SHAPE.carries and r - oldest > SHAPE.staleness or not is_alive(oldest_lineage, oldest) or not is_alive(newest_lineage, newest) then return false end
  end
  return true
end

-- A job that saves no more has none either: nothing would forget them.
function partials.restore(version)
  for _, p in ipairs(all_partials()) do
    if not SHAPE.partials or not weights_stand(p.weights, version) then drop(p.prompt, p) end
  end
end

-- Those on units that came back empty.
function partials.lose()
  for _, p in ipairs(all_partials()) do
    if not chunk_is_here(p.chunk) then redis.call('HDEL', partials.KEY, p.prompt) end
  end
end

-- (Ticket, weights of its samples that have tokens, descriptor)... Gives '1' for each that is kept: others have the ticket of a
-- '0', or it is put.
rank_call('save_partials', function(args, owner)
  local chunks, verdicts = {}, {}
  for i = 3, #args, 3 do chunks[#chunks + 1] = args[i] end
  require_units(chunks)
  for i = 1, #args, 3 do
    local t = load_ticket(tonumber(args[i]))
    local is_held = t and t.owner == owner
    if is_held then keep(t.prompt, args[i + 1], args[i + 2]) else discard(args[i + 2]) end
    verdicts[#verdicts + 1] = is_held and '1' or '0'
  end
  return {table.concat(verdicts)}, true
end)

-- (Prompt, descriptor)... of a save that had no answer. What it has not made by now it never will: calls are made in order.
rank_call('settle_partials', function(args)
  for i = 1, #args, 2 do
    local p = load_partial(args[i])
    if not p or p.chunk ~= args[i + 1] then discard(args[i + 1]) end
  end
  return {}, true
end)

-- Tickets that the caller holds. Gives the descriptor of each, '' where there is nothing to go on with.
rank_call('read_partials', function(args, owner)
  local answer = {}
  for i, id in ipairs(args) do
    local t = load_ticket(tonumber(id))
    local p = t and t.owner == owner and load_partial(t.prompt)
    answer[i] = p and chunk_is_here(p.chunk) and may_be_put(p, t.r) and p.chunk or ''
  end
  return answer
end)

-- Descriptors of all.
read_call('partials', function()
  local chunks = {}
  for i, p in ipairs(all_partials()) do chunks[i] = p.chunk end
  return chunks
end)

-- A partial is of a prompt that is yet to be generated.
function partials.check(broken)
  local open = {}
  for _, prompt in ipairs(redis.call('ZRANGE', FRONT, 0, -1)) do open[prompt] = true end
  for _, r in ipairs(redis.call('ZRANGE', PARTITIONS, 0, -1)) do
    for _, group in ipairs(redis.call('HKEYS', key(r, 'groups'))) do
      local g = load_group(r, tonumber(group))
      if g.state == 'w' or g.state == 'i' then open[tostring(g.prompt)] = true end
    end
  end
  for _, p in ipairs(all_partials()) do
    if not open[p.prompt] then broken[#broken + 1] = 'prompt ' .. p.prompt .. ' has a partial and is not to be generated' end
    if #p.weights == 0 or #p.weights % WEIGHT_BYTES ~= 0 or #p.weights > SHAPE.samples * WEIGHT_BYTES then
      broken[#broken + 1] = 'prompt ' .. p.prompt .. ' has a partial of ' .. #p.weights .. ' bytes of weights'
    end
  end
end

end
