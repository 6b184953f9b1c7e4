"""Advantages: whole groups in, advantages out. The only role without a model."""

from __future__ import annotations

from functools import partial

from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.pipeline import COMPUTE_ADVANTAGES
from rljob_workers.roles.rank import Draining, idle_until_ordered, serve_again, serve_partitions
from rljob_workers.roles.stages.advantages import advantages
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.types import Batch


def run(
    session: RankSession,
    queue: TransferQueueClient,
    timeline: Timeline,
    *,
    partitions: range,
    samples_per_prompt: int,
    max_rows: int,
) -> None:
    """Serves `partitions`, oldest first, until all are done or the pod drains."""

    def work(batch: Batch) -> None:
        with timeline.span("advantages", r=batch.rollout_id, rows=len(batch)):
            queue.put(batch, advantages(batch, samples_per_prompt), weight=None)

    session.ready()
    try:
        serve_partitions(session, queue, COMPUTE_ADVANTAGES.name, partitions, max_rows, work)
        again = partial(serve_again, session, queue, COMPUTE_ADVANTAGES.name, partitions, max_rows, work)
        idle_until_ordered(session, serve=again)
    except Draining:
        return
