"""Backoff: how long a global restart waits, and how many of them stand in a row."""

from rljob_api.spec import BackoffSpec
from rljob_api.status import RLJobStatus


def consecutive(status: RLJobStatus) -> int:
    """The n of the global restart that is being decided: 1 again once a checkpoint was recorded after the last one."""
    return 1 if has_recorded(status) else status.restart.consecutive + 1


def has_recorded(status: RLJobStatus) -> bool:
    """Whether a checkpoint was recorded after the last global restart."""
    recorded, before = status.training.checkpoint, status.restart.checkpoint
    return recorded is not None and (before is None or recorded > before)


def delay_seconds(spec: BackoffSpec, n: int) -> float:
    """The delay: initialSeconds * factor^(n - 1), at most maxSeconds."""
    if spec.initial_seconds == 0:
        return 0.0
    # A float overflows at factor^1024; the limit is reached long before n is that large.
    exponent = min(n - 1, 256)
    return float(min(spec.max_seconds, spec.initial_seconds * spec.factor**exponent))
