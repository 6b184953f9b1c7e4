"""The job that a workload is for us: the rows of one partition, one forward task that reads them, one that trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_workers.transfer_queue.types import QueueShape, Task, TaskKind

if TYPE_CHECKING:
    from tests.bench.queue.workloads import Workload

TRAIN = Task("train", TaskKind.TRAINING, ("score",))
READ = Task("read", TaskKind.FORWARD, (), ("score",))
"""Its needs are the workload's fields."""
NUM_ROLLOUTS = 1_000_000


def make_shape(workload: Workload) -> QueueShape:
    from tests.bench.queue.workloads import GROUP_ROWS

    return QueueShape(
        batch_size=workload.num_rows // GROUP_ROWS,
        samples_per_prompt=GROUP_ROWS,
        max_staleness=0,
        num_rollouts=NUM_ROLLOUTS,
        max_prompt_kills=2,
        max_attempts=2,
        generated_fields=workload.fields,
        tasks=(Task(READ.name, READ.kind, workload.fields, READ.writes), TRAIN),
    )
