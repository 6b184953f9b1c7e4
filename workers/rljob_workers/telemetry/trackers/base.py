"""A tracker as the feed sees it: a run that goes on, figures by step and by version, events and samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Line = Mapping[str, Any]
"""A line of events.jsonl or of generations.jsonl."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The same after every restart and resume: what is given later goes on in the same run."""

    id: str
    """Drawn with the run folder; another one after `rljob run --fresh`."""
    name: str
    """The job's."""
    config: Mapping[str, Any]
    """Its spec, resolved."""
    folder: Path
    """For the tracker's own files; it is there."""
    next_step: int
    """From which on steps come."""
    next_version: int
    """From which on evaluations of versions come."""
    given_lines: int
    """Lines of all kinds that earlier processes have given; 0 for a run that begins."""


class TrackerUnusable(Exception):
    """The tracker cannot work as it is set up; the message is a sentence for the user."""


class Tracker(ABC):
    """One run at one tracker. Of one thread; every call may take as long as it likes, since no one waits for it.

    for each line of metrics: forget(step) if it or a later one was given before; then step(...)
    for each evaluation: forget_evaluations(version) likewise; then evaluation(...)
    flush(); the cursor is written; ...; close()
    """

    @abstractmethod
    def forget(self, step: int) -> None:
        """Steps from `step` on will be given again, and replace what was given of them, where the tracker can."""

    @abstractmethod
    def step(self, step: int, figures: Mapping[str, float]) -> None:
        """Gives a trained step, by the names of docs/metrics.md, and `step/NAME` for what has no group."""

    @abstractmethod
    def forget_evaluations(self, version: int) -> None:
        """Evaluations of `version` and later ones will be given again, as steps are in `forget`, which leaves them."""

    @abstractmethod
    def evaluation(self, version: int, figures: Mapping[str, float]) -> None:
        """Figures of a version and `evaluation/NAME`, by the version, however many steps were given since."""

    @abstractmethod
    def samples(self, step: int, samples: Sequence[Line]) -> None:
        """Texts of a trained rollout, after its step."""

    @abstractmethod
    def events(self, first: int, events: Sequence[Line]) -> None:
        """Decisions, which no restart takes back; `first` is the number of the first since the run began."""

    @abstractmethod
    def flush(self) -> None:
        """Makes what was given survive this process."""

    def close(self) -> None:
        """Nothing comes any more from this process; the run may go on in another."""
        self.flush()
