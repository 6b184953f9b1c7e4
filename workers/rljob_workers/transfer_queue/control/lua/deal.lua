-- Dealing a batch to data-parallel ranks: equal numbers of rows each, token sums as near to each other as can be found.
-- Largest differencing (Karmarkar and Karp 1982) for sets of equal size, then exchanges between the heaviest and the
-- lightest set. Pure: the same items give the same deal.

-- A heap of {spread, sets}, the widest spread first.
local function heap_push(heap, item)
  local at = #heap + 1
  heap[at] = item
  while at > 1 do
    local above = math.floor(at / 2)
    if heap[above].spread >= heap[at].spread then break end
    heap[above], heap[at], at = heap[at], heap[above], above
  end
end

local function heap_pop(heap)
  local top, last, at = heap[1], table.remove(heap), 1
  if #heap == 0 then return top end
  heap[1] = last
  while true do
    local widest = at
    for below = 2 * at, 2 * at + 1 do
      if heap[below] and heap[below].spread > heap[widest].spread then widest = below end
    end
    if widest == at then return top end
    heap[at], heap[widest], at = heap[widest], heap[at], widest
  end
end

local function heavier(a, b)
  if a.weight ~= b.weight then return a.weight > b.weight end
  return a.first < b.first
end

-- Sorts items, heaviest first. As numbers, which are compared without a call of Lua for each pair.
local function sort_items(items)
  local count, keys, sorted = #items, {}, {}
  for i = 1, count do keys[i] = -(items[i].weight * (count + 1) + count - i) end
  table.sort(keys)
  for i = 1, count do sorted[i] = items[count - (-keys[i]) % (count + 1)] end
  return sorted
end

-- Sets, heaviest first, with the difference between the first and the last.
local function spread_of(sets)
  table.sort(sets, heavier)
  return {spread = sets[1].weight - sets[#sets].weight, sets = sets}
end

-- The items of a set. Sets are as deep as merges followed each other, so this does not call itself.
local function flatten(set)
  local items, left = {}, {set}
  while #left > 0 do
    local one = table.remove(left)
    if one.item then
      items[#items + 1] = one.item
    else
      left[#left + 1] = one[2]
      left[#left + 1] = one[1]
    end
  end
  return items
end

-- The heaviest set of one joins the lightest of the other, and so on: their differences cancel.
local function joined(one, other)
  local sets, size = {}, #one.sets
  for i = 1, size do
    local a, b = one.sets[i], other.sets[size + 1 - i]
    sets[i] = {a, b, weight = a.weight + b.weight, first = math.min(a.first, b.first)}
  end
  return spread_of(sets)
end

-- Puts an item into a list that is sorted, heaviest first.
local function insert_sorted(items, item)
  local low, high = 1, #items + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if heavier(items[middle], item) then low = middle + 1 else high = middle end
  end
  table.insert(items, low, item)
end

-- Moves a pair between the heaviest and the lightest set that brings them nearer; false where there is none.
local function exchange(sets)
  table.sort(sets, heavier)
  local heavy, light = sets[1], sets[#sets]
  local gap, best, from, to = heavy.weight - light.weight, nil, nil, nil
  local j = 1
  for i = 1, #heavy.items do
    -- Both are sorted, heaviest first: the partner that fits moves down with the item.
    while j < #light.items and heavy.items[i].weight - light.items[j].weight < gap / 2 do j = j + 1 end
    for near = math.max(1, j - 1), j do
      local moved = heavy.items[i].weight - light.items[near].weight
      if moved > 0 and moved < gap and (not best or math.abs(gap - 2 * moved) < best) then
        best, from, to = math.abs(gap - 2 * moved), i, near
      end
    end
  end
  if not best then return false end
  local large, small = table.remove(heavy.items, from), table.remove(light.items, to)
  insert_sorted(heavy.items, small)
  insert_sorted(light.items, large)
  heavy.weight = heavy.weight - large.weight + small.weight
  light.weight = light.weight - small.weight + large.weight
  return true
end

local EXCHANGES = 64

-- Items {weight, first} whose number is a multiple of `size`; gives `size` lists of as many items each.
local function deal_evenly(items, size)
  local heap = {}
  items = sort_items(items)
  for first = 1, #items, size do
    local sets = {}
    for i = first, first + size - 1 do sets[#sets + 1] = {item = items[i], weight = items[i].weight, first = items[i].first} end
    heap_push(heap, spread_of(sets))
  end
  while #heap > 1 do heap_push(heap, joined(heap_pop(heap), heap_pop(heap))) end
  local sets = {}
  for i, set in ipairs(heap[1].sets) do
    sets[i] = {items = sort_items(flatten(set)), weight = set.weight, first = set.first}
  end
  for _ = 1, EXCHANGES do
    if not exchange(sets) then break end
  end
  table.sort(sets, function(a, b) return a.first < b.first end)
  return sets
end
