"""A value written as its difference from the one before, so that schedules of thousands of worlds fit into a file.

A difference of two objects is an object of the differences of their fields, as is that of two lists of one length, by
index; `[value]` replaces whatever was there, `[]` takes it away.
"""

from __future__ import annotations

from tests.recorded.canonical import Json, text_of


def delta(before: Json, after: Json) -> Json:
    """The difference by which `applied` makes `after` of `before`."""
    match before, after:
        case dict(), dict():
            changed = {name: delta(before[name], value) for name, value in after.items() if name in before}
            added: dict[str, Json] = {name: [value] for name, value in after.items() if name not in before}
            gone: dict[str, Json] = {name: [] for name in before if name not in after}
            return {name: change for name, change in (changed | added | gone).items() if change != {}}
        case list(), list() if len(before) == len(after):
            pairs = enumerate(zip(before, after, strict=True))
            changes = {str(n): delta(old, new) for n, (old, new) in pairs}
            return {n: change for n, change in changes.items() if change != {}}
        case _:
            is_same = type(before) is type(after) and repr(before) == repr(after)  # 1 is not 1.0, nor True
            return {} if is_same else [after]


def applied(before: Json, change: Json) -> Json:
    """`after` of `delta(before, after)`."""
    match change, before:
        case [value], _:
            return value
        case dict(), dict():
            retained = {name: value for name, value in before.items() if change.get(name) != []}
            return retained | {name: applied(before.get(name), each) for name, each in change.items() if each != []}
        case dict(), list():
            return [applied(value, change[str(n)]) if str(n) in change else value for n, value in enumerate(before)]
        case _:
            assert change == {}, f"{text_of(change)} is no difference from {text_of(before)}"
            return before
