"""What the DCS raises.

DcsError
├── IncarnationOver          this rank or launcher is fenced (older epoch, later incarnation): stop, write nothing
├── WeightDead               the weight is not alive (its lineage was left before this version)
├── WeightIncomplete         a version is published while rows of its rollout are untrained
├── CoordinatorUnreachable   the coordinator has not answered within the deadline (who waited for what)
├── CoordinatorRefused       the coordinator refuses, with its sentence
├── WeightTimeout            no source gave the whole weight within the deadline
├── CorruptWeights           a chunk does not match its checksum, from every source
├── CheckpointDamaged        a checkpoint folder is incomplete or does not match its checksums
│   └── DamageReported       the same, and the coordinator chooses the folder that the next epoch begins with
└── CheckpointUnreadable     the storage of the checkpoints gives an error: nothing is known of the bytes
"""

from pathlib import Path


class DcsError(Exception):
    """Base of everything the DCS raises."""


class IncarnationOver(DcsError):
    """This incarnation is over; the message has the reason."""


class WeightDead(DcsError):
    """The weight belongs to a past that a restore left."""


class WeightIncomplete(DcsError):
    """Rows of the rollout that this version is trained on are not trained yet."""


class CoordinatorUnreachable(DcsError):
    """The coordinator did not answer in time."""


class CoordinatorRefused(DcsError):
    """The coordinator refuses the request, with its sentence."""


class WeightTimeout(DcsError):
    """A weight could not be pulled in time."""


class CorruptWeights(DcsError):
    """Bytes of a weight do not match its offer."""


class CheckpointDamaged(DcsError):
    """A checkpoint folder is not what was recorded: bytes that are not those that were written, or none."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"checkpoint: {path} {what}")
        self.path, self.what = path, what


class DamageReported(CheckpointDamaged):
    """The coordinator knows of it: the epoch is over, and the next one begins with another folder."""


class CheckpointUnreadable(DcsError):
    """The storage gives an error, by which nothing is known of the bytes."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"checkpoint: {path} cannot be read ({error}). It is asked again; nothing is left for that.")
