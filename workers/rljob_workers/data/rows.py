"""Prompts of one file, whatever its format, and the columns of its rows.

Used by the sources of prompts, by the trial of a reward, and by the coordinator, for the place of a prompt. Needs no
tokenizer by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rljob_api.row_files.conversations import TOOLS
from rljob_api.row_files.tables import Table, is_table, open_table
from rljob_api.spec.data import MAX_SOURCE_CHARACTERS
from rljob_workers.data.jsonl import JsonlRows
from rljob_workers.data.mixture import Draw, Mixing
from rljob_workers.data.prompts import Prompt, RowSource, item_at

if TYPE_CHECKING:
    from rljob_api.spec.data import DataSpec, PromptFile
    from rljob_workers.data.prompts import PromptEncoder


class Rows(Protocol):
    """Random access to the rows of a file. Threads may read at the same time."""

    @property
    def unit(self) -> str:
        """The name of one: `line` or `row`."""
        ...

    def __len__(self) -> int:
        """At least 1."""
        ...

    def number(self, index: int) -> int:
        """Its number in messages, from 1."""
        ...

    def row(self, index: int) -> dict[str, Any]:
        """Its columns; ValueError with a sentence where it cannot be read."""
        ...


class TableRows:
    """The rows of a file of columns."""

    unit = "row"

    def __init__(self, table: Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    def number(self, index: int) -> int:
        """See the protocol."""
        return index + 1

    def row(self, index: int) -> dict[str, Any]:
        """See the protocol."""
        return self._table.row(index)


def open_rows(file: PromptFile) -> Rows:
    """Opens rows by the kind of file; ValueError with a sentence where there are no rows."""
    path = Path(file.path)
    return TableRows(open_table(path, file.field)) if is_table(path) else JsonlRows(path, file.field)


class FilePrompts(RowSource):
    """Each row has a prompt under `promptKey` and a label under `labelKey`."""

    def __init__(self, spec: DataSpec, file: PromptFile, encoder: PromptEncoder) -> None:
        """Raises ValueError where there is no such file or no prompt in it."""
        self._spec = spec
        self._file = file
        self._encoder = encoder
        self._rows = open_rows(file)
        self._dataset = Path(file.path).stem

    def __len__(self) -> int:
        return len(self._rows)

    def at(self, index: int, /) -> Prompt:
        """Reads and tokenises one row."""
        return self.of_row(item_at(index, len(self), self._spec.shuffle_seed), index)

    def of_row(self, row: int, index: int) -> Prompt:
        """See the base."""
        where = f"{self._file.path} {self._rows.unit} {self._rows.number(row)}"
        entry = self._rows.row(row)
        prompt = prompt_of(entry, self._file.prompt_key, where)
        text, token_ids, messages = self._encoder.encode(prompt, where, entry.get(TOOLS))
        return Prompt(
            index,
            text,
            token_ids,
            label_of(entry, self._file.label_key),
            messages,
            row=other_columns(self._file, entry),
            dataset=self._dataset,
            source=source_of(self._spec, entry, where) or self._dataset,
        )


def prompt_of(entry: Mapping[str, Any], key: str, where: str) -> Any:  # noqa: ANN401 - the encoder judges what it is
    """Takes what a row has under the key of prompts; ValueError where that is nothing."""
    if key not in entry:
        raise ValueError(f"data.promptKey: {where} has no {key!r}, only {sorted(entry)}. Correct data.promptKey.")
    return entry[key]


def label_of(entry: Mapping[str, Any], key: str | None) -> Any:  # noqa: ANN401 - a label is what the user wrote
    """None where there is none: it depends on the reward whether that matters."""
    return None if key is None else entry.get(key)


def other_columns(file: PromptFile, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Columns that a row has beside its prompt and its label."""
    return {key: value for key, value in entry.items() if key not in (file.prompt_key, file.label_key)}


def source_of(spec: DataSpec, entry: Mapping[str, Any], where: str) -> str | None:
    """The value under sourceKey; None without such a key. ValueError where the row has no usable one."""
    if spec.source_key is None:
        return None
    value = entry.get(spec.source_key)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_SOURCE_CHARACTERS:
        raise ValueError(
            f"data.sourceKey: {where} has {value!r:.80} under {spec.source_key!r}, not a text of 1 to"
            f" {MAX_SOURCE_CHARACTERS} characters. Write the name of its source, or correct data.sourceKey."
        )
    return value


def place_of_row(spec: DataSpec, row: int) -> str:
    """The place of a row of all of the data, as a text; of several files without the file where one cannot be read."""
    if spec.reasoning_gym is not None:
        return f"task {row} of {spec.reasoning_gym.dataset}"
    first = 0
    for file in spec.files:
        try:
            rows = open_rows(file)
        except ValueError:
            break
        if row < first + len(rows):
            return f"{rows.unit} {rows.number(row - first)} of {file.path}"
        first += len(rows)
    return f"row {row + 1} of the data"


def place_of_prompt(spec: DataSpec, index: int) -> str:
    """The place of the prompt at `index` of the stream, as a text; without its line where the file cannot be read."""
    if spec.reasoning_gym is not None:
        return f"task {item_at(index, spec.reasoning_gym.size, spec.shuffle_seed)} of {spec.reasoning_gym.dataset}"
    draw = Draw(0, index)
    if spec.sources is not None:
        draw = Mixing([each.weight for each in spec.sources], spec.shuffle_seed).draw(index)
    file = spec.files[draw.source]
    try:
        rows = open_rows(file)
    except ValueError:
        return f"number {draw.index} of {file.path}"
    number = rows.number(item_at(draw.index, len(rows), spec.shuffle_seed))
    return f"{rows.unit} {number} of {file.path}"
