"""Logs of a run with a JSON line per sample: the audit of trained samples, and the texts that were generated.

Written by one rank each. A writer that died in mid-write leaves half a line, which the next one cuts off. The audit is
durable before the checkpoint that contains the training.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

import orjson
from pydantic.alias_generators import to_camel

from rljob_api.base import without_middle
from rljob_api.generations import FILE, MAX_CHARACTERS, OLDER_FILE
from rljob_api.machine.room import named_room


def open_log(path: Path) -> BinaryIO:
    """`path`, made if it is missing, for appending; half a line at its end is cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+b")
    _cut_torn_line(file.fileno())
    return file


def _cut_torn_line(fd: int) -> None:
    size = os.fstat(fd).st_size
    end = size
    while end:
        start = max(0, end - 65536)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(fd, end)


@dataclass(frozen=True, slots=True)
class DrawsOfGroup:
    """Draws that the filter of `rollout.dynamicSampling` has refused of a sample's group."""

    count: int
    """Draws that it has seen."""
    last_refused: bool
    """Whether it has refused the last, which is trained on, too."""

    def fields(self) -> dict[str, int | bool]:
        """As a line has them."""
        return {"draws": self.count, "lastDrawRefused": self.last_refused}


@dataclass(frozen=True, slots=True)
class TrainedSample:
    """One sample that an optimizer step used."""

    partition: str
    group: int
    index: int
    weight_version: int
    """The oldest version that made any of its tokens; of those that are not too old to be learnt from."""
    step: int
    epoch: int
    pass_index: int
    reward: float
    valid: bool
    """Whether it could be scored: if not, the reward means nothing, and it was masked."""
    draws: DrawsOfGroup | None = None
    """None where no filter has seen its group."""
    drawn_for: int | None = None
    """The rollout that its group was begun for; None in jobs that bind it to that."""
    is_learnt: bool = True
    """False where all of its tokens are too old: then `weight_version` is the newest that made one."""

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
                **({} if self.draws is None else self.draws.fields()),
                **({} if self.drawn_for is None else {"drawnFor": self.drawn_for}),
                **({} if self.is_learnt else {"learnt": False}),
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )


class SampleLog:
    """Appends trained samples and makes them durable."""

    def __init__(self, path: Path) -> None:
        """Opens `path` for appending, without the half line that a dead writer may have left."""
        self._path = path
        with self._room():
            self._file = open_log(path)

    def append(self, samples: Sequence[TrainedSample]) -> None:
        """Writes the lines; they are durable after `sync`."""
        with self._room():
            self._file.write(b"".join(sample.line() for sample in samples))

    def sync(self) -> None:
        """Blocks until every line is on the disk."""
        with self._room():
            self._file.flush()
            os.fdatasync(self._file.fileno())

    def close(self) -> None:
        """Makes everything durable and closes."""
        self.sync()
        self._file.close()

    def _room(self) -> AbstractContextManager[None]:
        return named_room(self._path.parent, f"{self._path.name} (telemetry.sampleLog)")


MAX_BYTES = 64 << 20
"""Size of each of the two files: the older one goes when the newer one is full."""


@dataclass(frozen=True, slots=True)
class SpanOfVersion:
    """Response tokens [start, end) were made by this version."""

    lineage: int
    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """Response tokens [start, end) were drawn by the model, or written by a tool."""

    by: Literal["model", "tool"]
    start: int
    end: int
    text: str


_OPTIONAL = frozenset(("draws", "label", "reward_parts"))
"""Not in the line of a sample that has none."""


@dataclass(frozen=True, slots=True)
class LoggedGeneration:
    """One sample."""

    rollout: int
    epoch: int
    group: int
    index: int
    prompt: str
    """As the model has read it, special tokens included; so is the response."""
    response: str
    prompt_tokens: int
    response_tokens: int
    finish_reason: str
    reward: float
    valid: bool
    """Whether it could be scored; if not, the reward means nothing."""
    advantage: float
    versions: Sequence[SpanOfVersion]
    """Over what the model drew: gaps where tools wrote."""
    turns: Sequence[LoggedTurn] = ()
    """Turns of a response that tools wrote into; another one has none."""
    draws: DrawsOfGroup | None = None
    """None where no filter has seen its group."""
    label: str | None = None
    """None where the prompt has none."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    """Measurements of rewards, by the names below reward/; none where the reward is a single number."""

    def line(self) -> bytes:
        """The sample as a JSON line; a long text is without its middle."""
        fields = {to_camel(name): value for name, value in asdict(self).items() if name not in _OPTIONAL}
        fields |= {} if self.draws is None else self.draws.fields()
        fields |= {} if self.label is None else {"label": self.label}
        fields |= {"rewardParts": dict(self.reward_parts)} if self.reward_parts else {}
        fields |= {"prompt": _bounded(self.prompt), "response": _bounded(self.response)}
        fields["turns"] = [{**asdict(turn), "text": _bounded(turn.text)} for turn in self.turns]
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def turns_of(
    loss_mask: Sequence[int], token_ids: Sequence[int], decode: Callable[[Sequence[Sequence[int]]], list[str]]
) -> list[LoggedTurn]:
    """Turns of a response, model and tools in alternation; none where no tool wrote, or where nothing was drawn."""
    if len(set(loss_mask)) < 2:  # one of both
        return []
    borders = [0, *(place for place in range(1, len(loss_mask)) if loss_mask[place] != loss_mask[place - 1])]
    runs = list(zip(borders, [*borders[1:], len(loss_mask)], strict=True))
    texts = decode([token_ids[start:end] for start, end in runs])
    return [
        LoggedTurn("model" if loss_mask[start] else "tool", start, end, text)
        for (start, end), text in zip(runs, texts, strict=True)
    ]


class GenerationLog:
    """Appends samples; retains the two newest files."""

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._path = folder / FILE
        self._older = folder / OLDER_FILE
        self._max_bytes = max_bytes
        self._file = open_log(self._path)

    def append(self, samples: Sequence[LoggedGeneration]) -> None:
        """Readers see the lines when this returns."""
        with named_room(self._path.parent, self._path.name):
            self._file.write(b"".join(sample.line() for sample in samples))
            self._file.flush()
        if self._file.tell() >= self._max_bytes:
            self._file.close()
            self._path.replace(self._older)
            self._file = open_log(self._path)

    def close(self) -> None:
        """Nothing is appended any more."""
        self._file.close()


def _bounded(text: str) -> str:
    return without_middle(text, MAX_CHARACTERS)
