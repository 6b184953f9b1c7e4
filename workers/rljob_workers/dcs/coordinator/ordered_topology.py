"""The shape of a role with the pods that are ordered: while the job runs it is scaled."""

from __future__ import annotations

from dataclasses import replace

from rljob_api.names import Role
from rljob_api.topology import RoleTopology, topology_of
from rljob_workers.dcs.coordinator.context import CoordinatorContext
from rljob_workers.dcs.coordinator.epochs import Epochs


def ordered_topology(context: CoordinatorContext, epochs: Epochs, role: Role) -> RoleTopology:
    """As the orders in force have it."""
    topology = topology_of(context.job.spec.roles, role)
    return replace(topology, pods=epochs.desired.replicas.get(role.value, 1))
