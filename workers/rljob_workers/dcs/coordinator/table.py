"""Typed tables and single values of the control Redis, and changes of them. Pure.

`records` declares them, `store` keeps them, rooms read and change them. A row is written as text and read once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")

_CELLS = "state"
"""The hash that has all single values."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one row becomes: the text that Redis gets and the value that it stands for; both None where it goes."""

    table: str
    field: str
    text: str | None
    value: Any


class _Kind(Generic[T]):
    """How values of one type are written."""

    def __init__(self, kind: type[T]) -> None:
        self._adapter = TypeAdapter(kind)
        self._is_text = kind is str

    def read(self, text: str) -> T:
        """The value of a row. Raises pydantic's error."""
        return self._adapter.validate_python(text) if self._is_text else self._adapter.validate_json(text)

    def write(self, value: T) -> str:
        """The row of a value."""
        return str(value) if self._is_text else self._adapter.dump_json(value, by_alias=True).decode()


class Table(_Kind[T]):
    """Rows of one type by field, in a hash of their own."""

    def __init__(self, name: str, kind: type[T]) -> None:
        super().__init__(kind)
        self.name = name

    def put(self, field: str, value: T) -> Change:
        """Sets a row."""
        return Change(self.name, field, self.write(value), value)

    def drop(self, field: str) -> Change:
        """Deletes a row, if it is there."""
        return Change(self.name, field, None, None)


class Cell(_Kind[T]):
    """A single value: one field of the hash that all of them share."""

    name = _CELLS

    def __init__(self, field: str, kind: type[T]) -> None:
        super().__init__(kind)
        self.field = field

    def put(self, value: T) -> Change:
        """Sets it."""
        return Change(self.name, self.field, self.write(value), value)

    def drop(self) -> Change:
        """Deletes it, if it is there."""
        return Change(self.name, self.field, None, None)
