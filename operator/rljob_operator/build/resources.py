"""What containers ask for and are held to, where the spec says nothing too."""

import string
from decimal import Decimal
from typing import Any

from rljob_api.infrastructure_spec import ResourcesSpec
from rljob_api.spec import RoleSpec

_MIB = 1 << 20
_CPU = "100m"
"""What every container asks for: on a busy node one that asks for nothing gets nothing, and misses its deadlines."""

COORDINATOR: dict[str, Any] = {
    "requests": {"cpu": _CPU, "memory": "256Mi"},
    "limits": {"memory": "2Gi"},
}
CONTROL: dict[str, Any] = {
    "requests": {"cpu": _CPU, "memory": "128Mi"},
    "limits": {"memory": "2Gi"},
}
"""Control state is some hundred bytes a row and the rows of a few rollouts; rewriting its file may double it."""
_STORAGE_OVERHEAD_BYTES = 256 * _MIB
"""Connections' buffers: a chunk of 4 MiB is in flight for each client."""
_STORAGE_FRAGMENTATION = 4
"""One part in so many of storageBytes may be freed memory that jemalloc keeps."""


def role_resources(spec: RoleSpec) -> dict[str, Any]:
    """Of a worker: the spec's, its GPUs, and a little CPU. Memory is reserved by the user's word only."""
    gpus = {spec.gpu_resource: str(spec.gpus)} if spec.gpus else {}
    requests, limits = {**spec.resources.requests, **gpus}, {**spec.resources.limits, **gpus}
    return _without_empty(_with_cpu(requests, limits), limits)


def server_resources(usual: dict[str, Any], given: ResourcesSpec) -> dict[str, Any]:
    """Of coordinator or control Redis: the spec's, and what is usual of which it says nothing."""
    limits = {**usual["limits"], **given.limits}
    unasked = given.limits.keys() - given.requests.keys()  # there Kubernetes takes the limit, which may be lower
    requests = {name: amount for name, amount in usual["requests"].items() if name not in unasked}
    return {"requests": {**requests, **given.requests}, "limits": limits}


def storage_resources(spec: ResourcesSpec, storage_bytes: int) -> dict[str, Any]:
    """Of a storage unit: memory for what it may hold, and above that what it needs to hold it."""
    limit = storage_bytes + storage_bytes // _STORAGE_FRAGMENTATION + _STORAGE_OVERHEAD_BYTES
    requests, limits = dict(spec.requests), dict(spec.limits)
    if "memory" not in limits:
        limits["memory"] = _mebibytes(limit)
        requests.setdefault("memory", _mebibytes(storage_bytes))
    return _without_empty(_with_cpu(requests, limits), limits)


def times(amount: str, factor: int) -> str:
    """An amount as Kubernetes writes it, so many times: 1.5Gi, 4 times, is 6Gi."""
    number = amount.rstrip(string.ascii_letters)
    product = Decimal(number) * factor
    return f"{product.normalize():f}{amount[len(number) :]}" if factor > 1 else amount


def _with_cpu(requests: dict[str, str], limits: dict[str, str]) -> dict[str, str]:
    """Where a limit is given and no request, Kubernetes takes the limit."""
    return requests if "cpu" in limits else {"cpu": _CPU, **requests}


def _mebibytes(amount: int) -> str:
    return f"{-(-amount // _MIB)}Mi"


def _without_empty(requests: dict[str, str], limits: dict[str, str]) -> dict[str, Any]:
    return {name: amounts for name, amounts in (("requests", requests), ("limits", limits)) if amounts}
