"""Names with one meaning: roles, scopes, streams, exit codes, and the integers that must not be mixed up."""

from enum import StrEnum
from typing import NewType

RolloutId = NewType("RolloutId", int)
"""r: one pass of batchSize prompts x samplesPerPrompt, written to partition `train_{r}`."""


WeightVersion = NewType("WeightVersion", int)
"""v: 0 for the initial weights, r + 1 after training on `train_{r}`."""


Lineage = NewType("Lineage", int)
"""Opened by every restore (1 for the first epoch); a weight is named by (lineage, version)."""


Epoch = NewType("Epoch", int)
"""Incarnation of the whole job; a global restart makes it epoch + 1."""


class EngineKind(StrEnum):
    """Inference servers that a rollout can have."""

    TORCH = "Torch"
    SGLANG = "SGLang"
    SIM = "Sim"


class Role(StrEnum):
    """A kind of worker. The value is the name in keys, logs and metrics."""

    ROLLOUT = "rollout"
    ACTOR = "actor"
    CRITIC = "critic"
    ACTOR_FWD = "actor_fwd"
    REFERENCE = "reference"
    ADVANTAGES = "advantages"


class Scope(StrEnum):
    """The part of a job that a failure restarts."""

    GLOBAL = "Global"
    IN_PLACE = "InPlace"


def partition_name(rollout_id: RolloutId) -> str:
    """The partition that rollout `rollout_id` is written to."""
    return f"train_{rollout_id}"


EXIT_SUCCEEDED = 0


EXIT_FAILED = 1


EXIT_BAD_MANIFEST = 64


EXIT_INTERRUPTED = 130


EXIT_FENCED = 75
"""A rank or launcher that the coordinator has fenced (replaced, or of an older epoch): it wrote nothing more and left;
a launcher ended its ranks and engine first."""


EXIT_GROUP_BROKEN = 76
"""A rank that left because another one of its gang is gone or did not come: other reports name the culprit."""


EXIT_CUT_OFF = 77
"""A rank that left since it could not reach the coordinator, or the control Redis, for too long: no failure of it, if
its launcher could not either."""


EXIT_TERMINATED = 143
"""A launcher that got SIGTERM, and left after its ranks had drained."""


class Stream(StrEnum):
    """Policy: the latest version. Reference: versions that reference log-probs are made under."""

    POLICY = "Policy"
    REFERENCE = "Reference"
