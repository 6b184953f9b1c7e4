"""A patch of a pod template, merged as `kubectl patch` merges one (strategic merge).

Maps are merged by key, and null deletes a key. Lists that Kubernetes merges have a key by which their entries are one;
`$patch: delete` in an entry deletes it. Every other list is replaced, tolerations among them. Unknown fields pass:
the API server judges them.
"""

from typing import Any

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "hostAliases": "ip",
    "resourceClaims": "name",
    "schedulingGates": "name",
}
"""As the patchMergeKey of Kubernetes' own types."""

_ONE_OF = ("env", "volumes")
"""An entry of these is its key and one source (or value): another source takes the place of the first one, where
kubectl would leave both and the API server refuse them."""

DIRECTIVE = "$patch"


def patched(original: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """`original` with `patch` merged into it; neither is changed."""
    merged = dict(original)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(key, merged.get(key), value)
    return merged


def _merged(key: str, original: Any, value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return patched(original if isinstance(original, dict) else {}, value)
    if isinstance(value, list) and key in MERGE_KEYS:
        return _merged_list(key, original if isinstance(original, list) else [], value)
    return value


def _merged_list(field: str, original: list[Any], patch: list[Any]) -> list[Any]:
    key = MERGE_KEYS[field]
    entries = {entry[key]: entry for entry in original}
    for change in patch:
        name = change[key]
        if change.get(DIRECTIVE) == "delete":
            entries.pop(name, None)
        elif field in _ONE_OF and _source(change, key) != _source(entries.get(name, {}), key):
            entries[name] = patched({}, change)
        else:
            entries[name] = patched(entries.get(name, {}), change)
    return list(entries.values())


def _source(entry: dict[str, Any], key: str) -> set[str]:
    return set(entry) - {key}
