"""Prompts from a JSONL file, one a line, and the place of a prompt for messages.

The file is indexed once by where its lines begin and read a line at a time, so that its size costs 24 bytes a line. It
must not change while a job runs; a line that no longer parses is named. The coordinator imports this for the place
alone: it reads no prompt and needs no tokenizer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rljob_api.spec.data import MAX_SOURCE_CHARACTERS
from rljob_workers.data.prompts import Prompt, PromptSource, item_at

if TYPE_CHECKING:
    import numpy.typing as npt

    from rljob_api.spec.data import DataSpec
    from rljob_workers.data.prompts import PromptEncoder


_BLOCK_BYTES = 1 << 24


_BLANK_BYTES = 8
"""A line with more white space than this and nothing else is named as broken instead of being passed over."""


class LineFile:
    """Random access to the lines of a file that are not blank. Threads may read at the same time."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._edges, self._numbers = _index(self._fd)

    def __len__(self) -> int:
        return len(self._numbers)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def line(self, index: int) -> bytes:
        """The `index`-th line that is not blank."""
        start, end = self._edges[index].tolist()
        return os.pread(self._fd, end - start, start)

    def number(self, index: int) -> int:
        """Its number in the file, counted from 1 over all lines, as an editor shows it."""
        return int(self._numbers[index]) + 1


def _index(fd: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """[lines, 2] start and end, and [lines] number, of lines with more than white space."""
    newlines, size = _newlines(fd)
    ends = newlines if len(newlines) and newlines[-1] == size - 1 else np.append(newlines, size)
    starts = np.concatenate(([0], ends[:-1] + 1))
    edges = np.stack((starts, ends), axis=1)
    keep = ends - starts > _BLANK_BYTES
    for index in np.flatnonzero(~keep).tolist():
        start, end = edges[index].tolist()
        keep[index] = bool(os.pread(fd, end - start, start).strip())
    return edges[keep], np.flatnonzero(keep)


def _newlines(fd: int) -> tuple[npt.NDArray[np.int64], int]:
    found = [np.zeros(0, np.int64)]
    position = 0
    while block := os.pread(fd, _BLOCK_BYTES, position):
        found.append(np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + position)
        position += len(block)
    return np.concatenate(found), position


class JsonlPrompts(PromptSource):
    """Each line is an object with a prompt under `promptKey` and a label under `labelKey`."""

    def __init__(self, spec: DataSpec, encoder: PromptEncoder) -> None:
        """Raises ValueError where there is no such file or no prompt in it."""
        assert spec.prompts is not None
        self._spec = spec
        self._encoder = encoder
        self._file = open_lines(Path(spec.prompts))
        self._dataset = self._file.path.stem

    def __len__(self) -> int:
        return len(self._file)

    def at(self, index: int) -> Prompt:
        """Reads and tokenises one line."""
        position = item_at(index, len(self), self._spec.shuffle_seed)
        where = f"{self._file.path} line {self._file.number(position)}"
        entry = parse_entry(self._file.line(position), where)
        prompt = _prompt_of(entry, self._spec.prompt_key, where)
        text, token_ids, messages = self._encoder.encode(prompt, where)
        return Prompt(
            index,
            text,
            token_ids,
            _label_of(entry, self._spec.label_key),
            messages,
            row=other_columns(self._spec, entry),
            dataset=self._dataset,
            source=source_of(self._spec, entry, where) or self._dataset,
        )


def open_lines(path: Path) -> LineFile:
    """The lines of `path`; ValueError with a sentence where there are none."""
    try:
        lines = LineFile(path)
    except OSError as error:
        raise ValueError(
            f"data.prompts: {path} cannot be read ({error.strerror}). Relative paths are relative to the manifest."
        ) from error
    if not len(lines):
        raise ValueError(f"data.prompts: {path} has no prompt in it. Write one JSON object a line.")
    return lines


def parse_entry(line: bytes, where: str) -> dict[str, Any]:
    """The object of one line."""
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ValueError(f"data.prompts: {where} is not JSON ({error}). Write one object a line.") from error
    if not isinstance(entry, dict):
        raise ValueError(f"data.prompts: {where} is a {type(entry).__name__}, not an object. Write one object a line.")
    return entry


def _prompt_of(entry: dict[str, Any], key: str, where: str) -> Any:  # noqa: ANN401 - the encoder judges what it is
    if key not in entry:
        raise ValueError(f"data.promptKey: {where} has no {key!r}, only {sorted(entry)}. Correct data.promptKey.")
    return entry[key]


def _label_of(entry: dict[str, Any], key: str | None) -> Any:  # noqa: ANN401 - a label is what the user wrote
    """None where there is none: it depends on the reward whether that matters."""
    return None if key is None else entry.get(key)


def other_columns(spec: DataSpec, entry: Mapping[str, Any]) -> dict[str, Any]:
    """What a line has beside its prompt and its label."""
    return {key: value for key, value in entry.items() if key not in (spec.prompt_key, spec.label_key)}


def source_of(spec: DataSpec, entry: Mapping[str, Any], where: str) -> str | None:
    """The value under sourceKey; None without such a key. ValueError where the line has no usable one."""
    if spec.source_key is None:
        return None
    value = entry.get(spec.source_key)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_SOURCE_CHARACTERS:
        raise ValueError(
            f"data.sourceKey: {where} has {value!r:.80} under {spec.source_key!r}, not a text of 1 to"
            f" {MAX_SOURCE_CHARACTERS} characters. Write the name of its source, or correct data.sourceKey."
        )
    return value


def place_of_prompt(spec: DataSpec, index: int) -> str:
    """The place of the prompt at `index` of the stream, as a text; without its line where the file cannot be read."""
    if spec.reasoning_gym is not None:
        return f"task {item_at(index, spec.reasoning_gym.size, spec.shuffle_seed)} of {spec.reasoning_gym.dataset}"
    assert spec.prompts is not None
    try:
        lines = open_lines(Path(spec.prompts))
    except ValueError:
        return f"number {index} of {spec.prompts}"
    return f"line {lines.number(item_at(index, len(lines), spec.shuffle_seed))} of {spec.prompts}"
