-- Suspicion: what the deaths of workers prove of a prompt that was in work in each of them. Pure, a number of deaths to another.
-- Workers die of much else than a prompt. So one death proves nothing, and its prompts are issued again as they were; those of
-- two deaths are suspects, issued alone; and one that a worker dies of alone is found, with its third death. Whatever ends well
-- is forgotten. SHAPE.kills (maxPromptKills) deaths set a prompt aside, or those three.

-- A table, since a library has room for 200 local names.
local suspicion = {SHARED = 2}

function suspicion.after_death(deaths, is_alone)
  if is_alone then return math.max(deaths, suspicion.SHARED) + 1 end
  return math.min(deaths + 1, suspicion.SHARED)
end

function suspicion.is_suspect(deaths) return deaths >= suspicion.SHARED end

function suspicion.is_set_aside(deaths) return deaths >= math.max(SHAPE.kills, suspicion.SHARED + 1) end
