"""How the actor's ranks find each other: rank 0 opens a store, the coordinator tells the others where.

Used by the actor's assembly only. Everything has a deadline: a rank that never comes is named, not waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from rljob_api.wire.identity import Life
from rljob_api.wire.ranks import Rendezvous
from rljob_workers.dcs.client import CoordinatorClient
from rljob_workers.dcs.context import RankContext
from rljob_workers.dcs.errors import CoordinatorRefused
from rljob_workers.trainers.data_parallel import DataParallelGroup, SingleRank, host_store, join_group

RENDEZVOUS_SECONDS = 120.0
"""For all ranks to come: each has imported its libraries and builds its model meanwhile."""
POLL_SECONDS = 10.0


def form_group(context: RankContext, on_wait: Callable[[str], None]) -> DataParallelGroup:
    """The data-parallel group of this rank's role; blocks until every rank is there.

    `on_wait` is how the rank beats while it waits for the others within a collective. Raises GroupNotComplete
    (who waited where), LifeOver (the epoch moved on), CoordinatorUnreachable.
    """
    if context.world_size == 1:
        return SingleRank()
    client = CoordinatorClient(context.endpoints)
    try:
        if context.global_rank == 0:
            return _host(context, client, on_wait)
        address = _find(context, client)
    finally:
        client.close()
    return join_group(
        address, context.global_rank, context.world_size, timeout_seconds=RENDEZVOUS_SECONDS, on_wait=on_wait
    )


def gather_rows(group: DataParallelGroup, rows: torch.Tensor) -> list[torch.Tensor]:
    """`rows` [n, columns] of every rank, by rank; n is the same on all (claims give equal shares)."""
    if group.world == 1:
        return [rows]
    everyone = torch.zeros(group.world, *rows.shape, dtype=rows.dtype)
    everyone[group.rank] = rows
    group.add_up(everyone, "what the ranks trained on")
    return list(everyone.unbind(0))


def incarnation_of_leader(group: DataParallelGroup, own: Life) -> str:
    """Incarnation of global rank 0: the folders of checkpoints are named by it. A collective."""
    number = torch.tensor(int(own.incarnation, 16) if group.rank == 0 else 0)
    group.add_up(number, "who leads")
    return f"{number.item():012x}"


def _group_name(context: RankContext) -> str:
    return f"{context.life.key.role.value}-data-parallel"


def _host(context: RankContext, client: CoordinatorClient, on_wait: Callable[[str], None]) -> DataParallelGroup:
    hosted = host_store(context.endpoints.address, timeout_seconds=RENDEZVOUS_SECONDS)
    life, name = context.life, _group_name(context)
    offer = Rendezvous(group=name, epoch=life.epoch, generation=life.generation, address=hosted.address)
    client.call("PUT", f"/v1/rendezvous/{name}", offer, deadline=time.monotonic() + RENDEZVOUS_SECONDS)
    return join_group(
        hosted.address, 0, context.world_size, timeout_seconds=RENDEZVOUS_SECONDS, hosted=hosted, on_wait=on_wait
    )


def _find(context: RankContext, client: CoordinatorClient) -> str:
    life, name = context.life, _group_name(context)
    path = f"/v1/rendezvous/{name}?epoch={life.epoch}&generation={life.generation}&wait={POLL_SECONDS}"
    deadline = time.monotonic() + RENDEZVOUS_SECONDS
    while True:
        try:
            answer = client.call("GET", path, None, deadline=deadline, wait=POLL_SECONDS)
            return Rendezvous.model_validate_json(answer).address
        except CoordinatorRefused:
            if time.monotonic() > deadline:
                raise
