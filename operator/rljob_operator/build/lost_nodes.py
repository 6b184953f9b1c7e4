"""How long a pod stays bound to a node that does not answer. Pure; called by `template` alone."""

from typing import Any

LOST_NODE_SECONDS = 30
"""From the taint of a node, which its cluster calls lost after some silence of its own, to another pod in its place.
Kubernetes' own is 300, for which a job of many nodes would stand still. A node that is only slow is not tainted."""

_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_EFFECT = "NoExecute"


def bounded(tolerations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`tolerations` and one for each way of losing a node, unless they speak of it themselves."""
    missing = [taint for taint in _TAINTS if not any(_speaks_of(taint, toleration) for toleration in tolerations)]
    return [*tolerations, *(_toleration(taint) for taint in missing)]


def _speaks_of(taint: str, toleration: dict[str, Any]) -> bool:
    """As the API server reads it before it adds its own: no key is every key, no effect every effect."""
    return toleration.get("key", "") in ("", taint) and toleration.get("effect", "") in ("", _EFFECT)


def _toleration(taint: str) -> dict[str, Any]:
    return {"key": taint, "operator": "Exists", "effect": _EFFECT, "tolerationSeconds": LOST_NODE_SECONDS}
