"""What was generated, for people: prompt, text and fate of a few samples of each rollout, in a file of bounded size.

Written by global rank 0 of the actor alone, of what it trains on. No audit: lines may be lost, and old ones go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
from pydantic.alias_generators import to_camel

from rljob_api.bounded_text import without_middle
from rljob_api.generations import FILE, MAX_CHARACTERS, OLDER_FILE
from rljob_workers.telemetry.line_file import open_lines

MAX_BYTES = 64 << 20
"""Of each of the two files: the older one goes when the newer one is full."""


@dataclass(frozen=True, slots=True)
class SpanOfVersion:
    """Response tokens [start, end) were made by this version."""

    lineage: int
    version: int
    start: int
    end: int


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

    def line(self) -> bytes:
        """The sample as a JSON line; a long text is without its middle."""
        fields = {to_camel(name): value for name, value in asdict(self).items()}
        fields |= {"prompt": _bounded(self.prompt), "response": _bounded(self.response)}
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


class GenerationLog:
    """Appends samples; the two newest files of them are kept."""

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._path = folder / FILE
        self._older = folder / OLDER_FILE
        self._max_bytes = max_bytes
        self._file = open_lines(self._path)

    def append(self, samples: Sequence[LoggedGeneration]) -> None:
        """Readers see the lines when this returns."""
        self._file.write(b"".join(sample.line() for sample in samples))
        self._file.flush()
        if self._file.tell() >= self._max_bytes:
            self._file.close()
            self._path.replace(self._older)
            self._file = open_lines(self._path)

    def close(self) -> None:
        """Nothing is appended any more."""
        self._file.close()


def _bounded(text: str) -> str:
    return without_middle(text, MAX_CHARACTERS)
