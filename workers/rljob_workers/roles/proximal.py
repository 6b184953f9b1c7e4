"""Where the actor takes the proximal log-probs of a rollout from: those under the weights before it is trained on.

Pure. Read by the actor's assembly. The ratio is clipped against them, and rollout log-probs are corrected to them.
"""

from __future__ import annotations

from enum import Enum

from rljob_api.open_defaults import has_one_optimizer_step
from rljob_api.spec import RLJobSpec
from rljob_workers import pipeline


class Proximal(Enum):
    """Who computes them."""

    QUEUE = "queue"
    """actor_fwd does, while the rollout is still being generated: they come with the rows."""
    STEP = "step"
    """The forward pass that trains: before the only optimizer step on a rollout the weights are those of its version,
    so that the new log-probs, without their gradient, are the proximal ones. A ratio is 1 then, and nothing clips."""
    ROLLOUT = "rollout"
    """The actor does, of all rows, before its first optimizer step on them. So the rollout must be complete first: no
    slice of it is trained on while others are still being generated."""


def proximal_of(spec: RLJobSpec) -> Proximal:
    """What a job does: actor_fwd where it has one, else what its optimizer steps allow."""
    if pipeline.LOG_PROBS in pipeline.fields_of(spec):
        return Proximal.QUEUE
    return Proximal.STEP if has_one_optimizer_step(spec) else Proximal.ROLLOUT
