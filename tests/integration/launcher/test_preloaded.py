"""The real parent: everything imported, one thread, and forks that train and serve."""

import os
import signal
import urllib.request
from pathlib import Path

from tests.integration.launcher.conftest import ROLLOUT, Machine, eventually


def num_threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_forked_ranks_train_and_the_forked_engine_serves(real_machine: Machine) -> None:
    launcher = real_machine.spawn(ROLLOUT)
    real_machine.coordinator.order(ROLLOUT)
    rank, engine = real_machine.rank(ROLLOUT), real_machine.engine(ROLLOUT)
    trained = f"life {rank.incarnation} trained"
    eventually("the first step", lambda: trained in real_machine.log("rollout-0.0"))
    with urllib.request.urlopen(f"{engine.url}/health", timeout=60) as answer:
        assert answer.status == 200
    assert (num_threads(real_machine.process.pid), num_threads(launcher)) == (1, 1)
    os.kill(rank.pid, signal.SIGKILL)
    real_machine.coordinator.order(ROLLOUT, generation=1)
    second = real_machine.rank(ROLLOUT, generation=1)
    eventually("its first step", lambda: f"life {second.incarnation} trained" in real_machine.log("rollout-0.0"))
    assert real_machine.engine(ROLLOUT) == engine
    assert real_machine.finish(ROLLOUT, generation=1).exit_code == 0
