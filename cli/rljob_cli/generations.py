"""What a run keeps of its generations: read, without what was trained again, and chosen from. Pure but for reading.

Called by `rljob samples`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_api.generations import FILES
from rljob_cli.step_log import surviving, whole_lines

Line = dict[str, Any]
"""One sample as the file has it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which samples are wanted; None where anything is."""

    rollouts: range | None = None
    lowest_reward: float | None = None
    highest_reward: float | None = None
    finish_reason: str | None = None
    valid: bool | None = None

    def takes(self, line: Line) -> bool:
        """Whether this one is. A reward is asked for of valid samples only: others have none."""
        asks_for_reward = (self.lowest_reward, self.highest_reward) != (None, None)
        return (
            (self.rollouts is None or line["rollout"] in self.rollouts)
            and (not asks_for_reward or bool(line["valid"]))
            and (self.lowest_reward is None or line["reward"] >= self.lowest_reward)
            and (self.highest_reward is None or line["reward"] <= self.highest_reward)
            and (self.finish_reason is None or line["finishReason"] == self.finish_reason)
            and (self.valid is None or line["valid"] == self.valid)
        )


def read_generations(folder: Path) -> list[Line]:
    """All samples of a run, in the order of rollouts, groups and samples; none where it has kept none.

    A half last line (the writer is alive or was killed) is left out.
    """
    lines: list[Line] = []
    for name in FILES:
        path = folder / name
        if path.exists():
            lines += [json.loads(line) for line in whole_lines(path)]
    return sorted(standing(lines), key=lambda line: (line["rollout"], line["group"], line["index"]))


def standing(lines: Iterable[Line]) -> list[Line]:
    """Without those of rollouts that a later epoch has trained again."""
    return surviving(lines, lambda line: (line["epoch"], line["rollout"]))


def rollouts_of(lines: Sequence[Line]) -> list[int]:
    """The rollouts that there are samples of, ascending."""
    return sorted({line["rollout"] for line in lines})
