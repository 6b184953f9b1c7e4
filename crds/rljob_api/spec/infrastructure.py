"""Coordinator and Redis pods (`spec.infrastructure`), and the resources of any container. On a cluster only."""

from typing import Any

from rljob_api.base import ApiModel
from rljob_api.quantity import Quantity

ResourceAmounts = dict[str, Quantity]


class ResourcesSpec(ApiModel):
    """Requests and limits of a container, as in a pod. On a cluster only."""

    requests: ResourceAmounts = {}
    """Amounts that the scheduler reserves, e.g. {cpu: 2, memory: 8Gi}."""
    limits: ResourceAmounts = {}
    """Amounts that the container may use at most."""


class ServerSpec(ApiModel):
    """One server of the job."""

    resources: ResourcesSpec = ResourcesSpec()
    """CPU and memory, beside what it has by default (100m of CPU; a memory limit of 2Gi)."""


class InfrastructureSpec(ApiModel):
    """Coordinator and Redis. On a cluster only."""

    coordinator: ServerSpec = ServerSpec()
    """The coordinator."""
    control: ServerSpec = ServerSpec()
    """The Redis with the control state. Those with rows have transferQueue.redis.resources."""
    template: dict[str, Any] = {}
    """A patch of the templates of their pods and of trackers' pods, as a role's: to a pool of nodes without GPUs, say.
    Their containers are called `coordinator`, `redis` and `tracker`. With checkpoint.volume.accessMode ReadWriteOnce
    coordinator and trackers follow the actor to its node all the same."""
