"""What containers ask for and are held to, where the spec says nothing too."""

import string
from decimal import Decimal
from typing import Any

from rljob_api.infrastructure_spec import ResourcesSpec
from rljob_api.quantity import value
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


ROLE: dict[str, Any] = {"requests": {"cpu": _CPU}}
"""Memory is reserved by the user's word only."""


def storage_resources(storage_bytes: int) -> dict[str, Any]:
    """Of a storage unit: memory for what it may hold, and above that what it needs to hold it."""
    limit = storage_bytes + storage_bytes // _STORAGE_FRAGMENTATION + _STORAGE_OVERHEAD_BYTES
    return {
        "requests": {"cpu": _CPU, "memory": _mebibytes(storage_bytes)},
        "limits": {"memory": _mebibytes(limit)},
    }


def role_given(spec: RoleSpec) -> ResourcesSpec:
    """What a role asks for, its GPUs included."""
    gpus = {spec.gpu_resource: str(spec.gpus)} if spec.gpus else {}
    return ResourcesSpec(requests={**spec.resources.requests, **gpus}, limits={**spec.resources.limits, **gpus})


def with_given(usual: dict[str, Any], given: ResourcesSpec) -> dict[str, Any]:
    """`usual` resources of a container with those of the spec over them: an amount that the spec names is as it says.

    Where it gives a limit and no request, Kubernetes takes the limit; so a usual request goes, which may be higher. A
    usual limit goes where the spec asks for more.
    """
    unasked = given.limits.keys() - given.requests.keys()
    requests = {name: amount for name, amount in usual.get("requests", {}).items() if name not in unasked}
    limits = {
        name: amount
        for name, amount in usual.get("limits", {}).items()
        if name not in given.requests or not _exceeds(given.requests[name], amount)
    }
    amounts = {"requests": {**requests, **given.requests}, "limits": {**limits, **given.limits}}
    rest = {name: rest_of for name, rest_of in usual.items() if name not in amounts}
    return {**rest, **{name: found for name, found in amounts.items() if found}}


def _exceeds(amount: str, limit: object) -> bool:
    """An administrator's limit is only judged by the API server."""
    try:
        return value(amount) > value(str(limit))
    except ValueError:
        return False


def times(amount: str, factor: int) -> str:
    """An amount as Kubernetes writes it, so many times: 1.5Gi, 4 times, is 6Gi."""
    number = amount.rstrip(string.ascii_letters)
    product = Decimal(number) * factor
    return f"{product.normalize():f}{amount[len(number) :]}" if factor > 1 else amount


def _mebibytes(amount: int) -> str:
    return f"{-(-amount // _MIB)}Mi"
