"""How many passes of a stage the schedule of a pipeline lasts, and for how many one stage may wait for another. Pure.

A pass is one micro-batch forward, or backward, through one stage, all of its pieces together. Deadlines are counted in
passes: `restartPolicy.collectiveTimeoutSeconds` is that of one. A stage takes one micro-batch forward and one backward
by turns, after as many forward as stages are behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rljob_api.spec.parallelism import ParallelismSpec


def num_micro_batches(wanted: int, parallelism: ParallelismSpec) -> int:
    """Pieces of a stage take turns over as many micro-batches as there are stages: empty ones fill up the last turn."""
    turn = parallelism.pipeline if parallelism.virtual_pipeline > 1 else 1
    return -(-wanted // turn) * turn


def passes_of_schedule(wanted: int, parallelism: ParallelismSpec) -> int:
    """That follow each other from the first pass to the last one, of all stages.

    Were all passes equally long, each stage would have two for a micro-batch, and the others' before its first and
    behind its last one.
    """
    return 2 * (num_micro_batches(wanted, parallelism) + parallelism.pipeline - 1)


def longest_wait(parallelism: ParallelismSpec) -> int:
    """In passes, of one wait within a schedule or at its end: of a micro-batch through all other stages and back.

    So long the first stage may wait for its first gradient. The last one, whose passes end first, waits less long for
    the backward passes of the others before its outputs go out, but for more than one of them, too.
    """
    return max(1, 2 * (parallelism.pipeline - 1))
