"""How the ranks of a gang find each other: all report to the coordinator, and meet at a store of the first.

Used by the assembly of roles with gangs. Every wait has a deadline: the error names a rank that does not come.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from rljob_api.spec.restart import absence_seconds, collective_seconds
from rljob_api.wire.identity import Incarnation
from rljob_api.wire.ranks import Rendezvous
from rljob_workers.dcs.membership.coordinator_http import CoordinatorClient
from rljob_workers.dcs.membership.rank_context import RankContext
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.trainers.data_parallel import (
    DataParallelGroup,
    GroupBroken,
    GroupNotComplete,
    HostedStore,
    SingleRank,
    host_store,
    join_group,
)

POLL_SECONDS = 5.0


BUSY_SECONDS = 60.0
"""Announced at every turn of the wait, so that no waiting rank counts as silent."""


def form_group(context: RankContext, session: RankSession) -> DataParallelGroup:
    """The group of this rank's gang; blocks, announced as busy, until every rank is there.

    Raises GroupNotComplete (who has not come in rendezvousTimeoutSeconds), GroupBroken (one that had come was lost),
    IncarnationOver (the epoch moved on), CoordinatorUnreachable. Time in which a pod has not begun does not count: that
    is its platform's.
    """
    gang = _gang(context)
    if len(gang) == 1:
        return SingleRank()
    timeout = collective_seconds(context.job.spec.restart_policy)
    client = CoordinatorClient(context.endpoints)
    try:
        hosted = _host(context, client, timeout) if context.global_rank == gang.start else None
        address = _Meeting(context, session, client).address()
    finally:
        client.close()
    try:
        with session.busy("joining the other ranks", timeout):
            return join_group(
                address,
                context.global_rank - gang.start,
                len(gang),
                timeout_seconds=timeout,
                hosted=hosted,
                on_wait=session.beat_within,
                counter=context.memory,
            )
    except GroupNotComplete as error:  # all had come: one of them was lost since, and it is not this one's fault
        raise GroupBroken(str(error)) from error


class _Meeting:
    """The wait until all ranks have come."""

    def __init__(self, context: RankContext, session: RankSession, client: CoordinatorClient) -> None:
        self._context = context
        self._session = session
        self._client = client
        self._limit = float(context.job.spec.restart_policy.rendezvous_timeout_seconds)
        self._waits_for = "the other ranks"

    def address(self) -> str:
        """Where they meet."""
        since, wait = time.monotonic(), 0.0  # the first answer comes at once and names who is missing
        while True:
            with self._session.busy(f"the rendezvous: it waits for {self._waits_for}", BUSY_SECONDS):
                found = self._ask(wait)
            wait = min(POLL_SECONDS, self._limit)
            if found.address:
                return found.address
            if found.absent:
                since = time.monotonic()
                self._waits_for = f"{', '.join(found.absent)} to begin"
            elif found.missing:
                self._waits_for = ", ".join(found.missing)
            if time.monotonic() - since > self._limit:
                raise GroupNotComplete(self._sentence())

    def _ask(self, wait: float) -> Rendezvous:
        incarnation = self._context.incarnation
        path = (
            f"/v1/rendezvous/{_group_name(self._context)}?epoch={incarnation.epoch}&generation={incarnation.generation}"
            f"&wait={wait}&incarnation={incarnation.id}"
        )
        deadline = time.monotonic() + absence_seconds(self._context.job.spec.restart_policy)
        return Rendezvous.model_validate_json(self._client.call("GET", path, None, deadline=deadline, wait=wait))

    def _sentence(self) -> str:
        incarnation = self._context.incarnation
        return (
            f"rendezvous of {len(_gang(self._context))} ranks in epoch {incarnation.epoch}, "
            f"generation {incarnation.generation}: {self._waits_for} did not come in "
            f"{self._limit:g} s (restartPolicy.rendezvousTimeoutSeconds). Its log says what it does."
        )


def incarnation_of_leader(group: DataParallelGroup, own: Incarnation) -> str:
    """Incarnation of global rank 0: the folders of checkpoints are named by it. A collective."""
    number = torch.tensor(int(own.id, 16) if group.rank == 0 else 0)
    group.add_up(number, "who leads")
    return f"{number.item():012x}"


def _gang(context: RankContext) -> range:
    """Global ranks of this rank's gang, of the pods that are ordered."""
    topology = context.job.spec.roles.topology(context.incarnation.key.role)
    pods = context.world_size // topology.ranks_per_pod
    return replace(topology, pods=pods).gang_of(context.global_rank)


def _group_name(context: RankContext) -> str:
    role = context.incarnation.key.role.value
    first = _gang(context).start
    return f"{role}-data-parallel-{first}" if first else f"{role}-data-parallel"


def _host(context: RankContext, client: CoordinatorClient, timeout_seconds: float) -> HostedStore:
    hosted = host_store(context.endpoints.address, timeout_seconds=timeout_seconds)
    incarnation, name = context.incarnation, _group_name(context)
    offer = Rendezvous(
        group=name,
        epoch=incarnation.epoch,
        generation=incarnation.generation,
        address=hosted.address,
        incarnation=incarnation.id,
    )
    deadline = time.monotonic() + absence_seconds(context.job.spec.restart_policy)
    client.call("PUT", f"/v1/rendezvous/{name}", offer, deadline=deadline)
    return hosted
