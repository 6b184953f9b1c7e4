"""The file in which a run keeps what its evaluations found, and a line of it.

Writers are `rljob run` and, for trackers on a cluster, the coordinator; readers the trackers and the Python door. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from rljob_api.wire.observation import CoordinatorEvent

FILE = "evaluations.jsonl"

_Line = TypeVar("_Line", bound=Mapping[str, Any])


def evaluation_line(event: CoordinatorEvent) -> dict[str, object] | None:
    """The line for an event that reports an evaluation; None for others.

    A version that is evaluated again, since a restart has taken it back, has another line; the last counts.
    """
    found = event.evaluation
    if found is None:
        return None
    line: dict[str, object] = {
        "time": event.at,
        "version": found.version,
        "epoch": event.epoch,
        "samples": found.samples,
    }
    return line | dict(sorted(found.metrics.items()))


def of_run(lines: Iterable[_Line]) -> list[_Line]:
    """Lines of the run itself: `rljob evaluate --out` may have added some of a checkpoint, which are of no epoch."""
    return [line for line in lines if "epoch" in line]
