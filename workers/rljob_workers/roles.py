"""The roles' assembly: makes the parts that every rank has, and runs the role that the table names for it.

`main` is called by the launcher in the forked child. It returns the exit code; a ValueError is the user's, everything
else is ours. A new role is a function beside its loop and a row in the table.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from rljob_api.names import EXIT_SUCCEEDED, Role
from rljob_workers import pipeline
from rljob_workers.dcs.membership.rank_context import RankContext
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.rank_loop import RankParts
from rljob_workers.rollout.assembly import run_rollout
from rljob_workers.scoring.advantages import run_advantages
from rljob_workers.scoring.forward import run_actor_fwd, run_reference
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.training.critic_loop import run_critic
from rljob_workers.training.loop import run_actor
from rljob_workers.transfer_queue.client import TransferQueueClient


def main(context: RankContext) -> int:
    """Runs the role of `context` until its pod drains; IncarnationOver and errors go to the launcher as they are."""
    spec, incarnation = context.job.spec, context.incarnation
    path = Path(context.endpoints.run_dir) / "timeline" / f"{incarnation.key}.{incarnation.id}.jsonl"
    with closing(Timeline(path, str(incarnation.key))) as timeline:
        session = RankSession(context)
        queue = TransferQueueClient(
            context.endpoints,
            pipeline.queue_shape(spec),
            incarnation,
            waiting=spec.transfer_queue.polling_mode,
            checksums=spec.transfer_queue.checksums,
            counters=session.counters,
        )
        session.follow_seq(lambda: queue.calls.seen_seq)
        topology = spec.roles.topology(incarnation.key.role)
        _LOOPS[incarnation.key.role](RankParts(context, spec, topology, session, queue, timeline))
    return EXIT_SUCCEEDED


_LOOPS: dict[Role, Callable[[RankParts], None]] = {
    Role.ROLLOUT: run_rollout,
    Role.ACTOR: run_actor,
    Role.CRITIC: run_critic,
    Role.ACTOR_FWD: run_actor_fwd,
    Role.REFERENCE: run_reference,
    Role.ADVANTAGES: run_advantages,
}
