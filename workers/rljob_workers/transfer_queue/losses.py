"""What the queue admin says of rows that are gone: lost with their bytes, or given up for room. Values only.

For the coordinator, which reports it, and for tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rljob_api.names import RolloutId, partition_name

MAX_NAMED = 4
"""Partitions that a sentence names; of more of them it says the first and the last."""


@dataclass(frozen=True, slots=True)
class LostRows:
    """What a loss of bytes means, in groups."""

    recomputed: int = 0
    """Only derived fields were lost: they, and what depends on them, are computed again."""
    reissued: int = 0
    """The group is generated again under the same reservation."""
    absent: int = 0
    """Published already: nothing is done until a restore."""
    needs_global_restart: int = 0
    """Claimed or consumed by a training task: only a global restart helps."""

    def __str__(self) -> str:
        return (
            f"{self.recomputed} groups computed again, {self.reissued} generated again, {self.absent} absent until a"
            f" restore, {self.needs_global_restart} in training (these need a global restart)"
        )


@dataclass(frozen=True, slots=True)
class LostChunks:
    """Chunks that a storage unit lost one by one, though it kept its mark."""

    unit: int
    rollout_id: RolloutId
    fields: tuple[str, ...]
    """Of the chunks that were found missing now."""
    num_chunks: int
    """Of this unit, since the control state began."""
    loss: LostRows


class Given(StrEnum):
    """Why rows could be given up."""

    RETAINED = "retained"
    """They were kept for a restore only."""
    UNCLAIMED = "unclaimed"
    """No training task had claimed them: they are generated again."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """What went at one time to make room."""

    given: Given
    rollout_id: RolloutId
    groups: int
    rows: int
    total_rows: int
    """That went so in all, since the control state began."""

    def __str__(self) -> str:
        return in_one_sentence([self])


def in_one_sentence(dropped: Iterable[Dropped]) -> str:
    """What went, in the order of the contract: kinds, rows, partitions."""
    listed = list(dropped)
    kinds = [(given, [one for one in listed if one.given is given]) for given in Given]
    return "; ".join(_sentence(given, of_kind) for given, of_kind in kinds if of_kind)


def _sentence(given: Given, dropped: list[Dropped]) -> str:
    rows, groups = sum(one.rows for one in dropped), sum(one.groups for one in dropped)
    what = f"{rows} rows ({groups} groups) of {_partitions({one.rollout_id for one in dropped})}"
    if given is Given.RETAINED:
        return f"{what}, kept for a restore, were dropped"
    return f"{what} were dropped and are generated again"


def _partitions(rollout_ids: set[RolloutId]) -> str:
    names = [partition_name(rollout_id) for rollout_id in sorted(rollout_ids)]
    if len(names) <= MAX_NAMED:
        return ", ".join(names)
    return f"{len(names)} partitions from {names[0]} to {names[-1]}"
