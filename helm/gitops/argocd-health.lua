-- How Argo CD reads an RLJob: resource.customizations.health.rljob.dev_RLJob of the ConfigMap argocd-cm (docs/gitops.md).
local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is(kind, value)
  return conditions[kind] ~= nil and conditions[kind].status == value
end

local function health(name, kind, otherwise)
  local message = conditions[kind] and conditions[kind].message or otherwise
  return { status = name, message = message }
end

if is("Failed", "True") then return health("Degraded", "Failed") end
if is("Accepted", "False") then return health("Degraded", "Accepted") end
if (status.observedGeneration or 0) < (obj.metadata.generation or 0) then
  return { status = "Progressing", message = "the operator has not seen this spec yet" }
end
if is("Succeeded", "True") then return health("Healthy", "Succeeded") end
if is("Suspended", "True") then return health("Suspended", "Suspended") end
if is("Stalled", "True") then return health("Degraded", "Stalled") end
if is("Ready", "True") then return health("Healthy", "Ready") end
return health("Progressing", "Ready", "the job starts")
