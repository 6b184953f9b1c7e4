"""The audit: a line of `samples.jsonl` per trained sample, durable before the checkpoint that contains the training.

Written by global rank 0 of the actor alone. A life that died in mid-write leaves half a line: the next one cuts it off.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from rljob_workers.telemetry.line_file import open_lines


@dataclass(frozen=True, slots=True)
class TrainedSample:
    """One sample that an optimizer step used."""

    partition: str
    group: int
    index: int
    weight_version: int
    """The oldest version that made any of its tokens."""
    step: int
    epoch: int
    pass_index: int
    reward: float
    valid: bool
    """Whether it could be scored: if not, the reward means nothing, and it was masked."""

    def line(self) -> bytes:
        """The sample as a JSON line."""
        return orjson.dumps(
            {
                "partition": self.partition,
                "group": self.group,
                "index": self.index,
                "weightVersion": self.weight_version,
                "step": self.step,
                "epoch": self.epoch,
                "pass": self.pass_index,
                "reward": self.reward,
                "valid": self.valid,
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )


class SampleLog:
    """Appends trained samples and makes them durable."""

    def __init__(self, path: Path) -> None:
        """Opens `path` for appending, without the half line that a dead writer may have left."""
        self._file = open_lines(path)

    def append(self, samples: Sequence[TrainedSample]) -> None:
        """Writes the lines; they are durable after `sync`."""
        self._file.write(b"".join(sample.line() for sample in samples))

    def sync(self) -> None:
        """Blocks until every line is on the disk."""
        self._file.flush()
        os.fdatasync(self._file.fileno())

    def close(self) -> None:
        """Makes everything durable and closes."""
        self.sync()
        self._file.close()
