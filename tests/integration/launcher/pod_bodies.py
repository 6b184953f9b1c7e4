"""A pod's first process as these tests run it: the real entry, small ranks and engines, and no torch.

python pod_bodies.py ARGUMENTS   as `python -m rljob_workers.launcher.pod ARGUMENTS`
"""

import os
import sys
import time
from pathlib import Path

from rljob_workers.dcs.membership.rank_context import RankContext
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.launcher.launcher import Bodies
from rljob_workers.launcher.pod import main
from rljob_workers.launcher.ranks import until_fenced
from tests.integration.launcher.bodies import act, small_engine


def rank(context: RankContext) -> int:
    """Prints its order, registers, is Ready unless a file forbids it, and beats until it shall drain."""
    run_dir = Path(context.endpoints.run_dir)
    print(f"life {context.incarnation.id} learns at {context.job.spec.training.optimizer.learning_rate}", flush=True)  # noqa: T201
    print(f"units {len(context.endpoints.storage_units)} address {context.endpoints.address}", flush=True)  # noqa: T201
    session = RankSession(context)
    while not session.draining:
        if not (run_dir / "unready").exists() and not context.memory.is_ready:
            session.ready()
        session.pulse(waiting="nothing")
        act(run_dir)
        time.sleep(0.01)
    print("drained", flush=True)  # noqa: T201
    return 0


def live(context: RankContext) -> int:
    """As the launcher runs it."""
    return until_fenced(rank, context)


if __name__ == "__main__":
    code = main(sys.argv[1:], Bodies(live, small_engine), load=lambda preloads: None)
    sys.stdout.flush()
    os._exit(code)
