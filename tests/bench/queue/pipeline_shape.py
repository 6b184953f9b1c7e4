"""The pipeline of W6: who needs what. And the clocks that its processes share: when each row got ready and was claimed.

A shared file holds one moment (monotonic seconds) per row and stage: fields as they were committed, tasks as they were
claimed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from rljob_api.spec.training import ClaimPolicy
from rljob_workers.transfer_queue.types import QueueShape, Task, TaskKind

GROUP_ROWS = 8
PARTITION_ROWS = 2048
MAX_STALENESS = 2
GENERATED = ("tokens", "response_lengths", "rewards")
LOG_PROBS = Task("actor_log_probs", TaskKind.FORWARD, ("tokens", "response_lengths"), ("log_probs",))
REFERENCE = Task("ref_log_probs", TaskKind.FORWARD, ("tokens", "response_lengths"), ("ref_log_probs",))
VALUES = Task("critic_values", TaskKind.FORWARD, ("tokens",), ("values",))
ADVANTAGES = Task(
    "advantages",
    TaskKind.FORWARD,
    ("rewards", "log_probs", "ref_log_probs", "values"),
    ("advantages",),
    ClaimPolicy.GROUP,
)
TRAIN = Task("actor_train", TaskKind.TRAINING, ("tokens", "log_probs", "advantages"))
TASKS = (LOG_PROBS, REFERENCE, VALUES, ADVANTAGES, TRAIN)


def make_shape(num_rows: int) -> QueueShape:
    return QueueShape(
        batch_size=PARTITION_ROWS // GROUP_ROWS,
        samples_per_prompt=GROUP_ROWS,
        max_staleness=MAX_STALENESS,
        num_rollouts=num_rows // PARTITION_ROWS,
        max_prompt_kills=2,
        max_attempts=2,
        generated_fields=GENERATED,
        tasks=TASKS,
    )


class Clocks:
    """Shared by all processes of a pipeline."""

    def __init__(self, folder: Path, num_rows: int) -> None:
        """The first one makes the files; all others find them."""
        self._folder = folder
        self._num_rows = num_rows
        stages = ["generated", *(field for task in TASKS for field in task.writes), *(task.name for task in TASKS)]
        self._moments = {stage: self._open(stage, num_rows) for stage in stages}
        self._published = self._open("published", 1)

    @property
    def published(self) -> int:
        return int(self._published[0])

    @published.setter
    def published(self, version: int) -> None:
        self._published[0] = version

    def stamp(self, stage: str, rollout: int, rows: npt.NDArray[np.uint32], moment: float) -> None:
        self._moments[stage][rollout * PARTITION_ROWS + rows.astype(np.int64)] = moment

    def waits(self, task: Task) -> npt.NDArray[np.float64]:
        """Seconds from the commit of the last needed field to the claim's return with the bytes, for every row.

        A commit counts from the return of its call: a claim that overtakes it has not waited.
        """
        stages = {"generated" if field in GENERATED else field for field in task.needs}
        ready = np.maximum.reduce([self._moments[stage] for stage in stages])
        waits: npt.NDArray[np.float64] = np.maximum(self._moments[task.name] - ready, 0.0)
        return waits

    def missed(self) -> list[str]:
        """Stages that some row never reached."""
        return [stage for stage, moments in self._moments.items() if not moments.all()]

    def span(self) -> tuple[float, float]:
        """First commit and last claim for training."""
        return float(self._moments["generated"].min()), float(self._moments[TRAIN.name].max())

    def _open(self, name: str, length: int) -> npt.NDArray[np.float64]:
        path = self._folder / f"{name}.f64"
        if not path.exists():
            np.zeros(length).tofile(path)
        return np.memmap(path, np.float64, "r+", shape=(length,))
