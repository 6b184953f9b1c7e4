"""The difference between files that a run reads and those that it has read before, in a sentence."""

import pytest

from rljob_api.wire.inputs import FileContent, InputNote
from rljob_workers.dcs.coordinator.run_inputs import change_of

FILE = FileContent(num_bytes=100, digest="aa", rows=10)


def note(path: str = "/data", **files: FileContent) -> InputNote:
    """A note of a file `rows` and others."""
    return InputNote(field="spec.data.prompts", path=path, stamp="s", files={"rows": FILE, **files})


def changed(**values: int | str | None) -> InputNote:
    """With another content of `rows`."""
    return note(rows=FILE.model_copy(update=values))


@pytest.mark.parametrize(
    ("known", "found", "expected"),
    [
        (note(), note(), None),
        (note(), changed(digest="bb"), "rows: other content"),
        (note(), changed(digest="bb", num_bytes=90, rows=9), "rows: 100 -> 90 bytes, 10 -> 9 rows, other content"),
        (note(), changed(digest="bb", num_bytes=90, rows=None), "rows: 100 -> 90 bytes, other content"),
        (note(a=FILE), note(), "a is gone"),
        (note(), note(a=FILE, b=FILE), "a is new; b is new"),
        (note(), note(a=FILE, b=FILE, c=FILE, d=FILE, e=FILE), "a is new; b is new; c is new and 2 more"),
        (note(), note("/elsewhere", a=FILE), None),
        (note().model_copy(update={"files": None}), note(), None),
        (changed(parts="p"), changed(parts="p", digest="p", rows=None), None),
        (changed(parts="p", digest="p", rows=None), changed(parts="p"), None),
        (changed(parts="p"), changed(parts="q", digest="q", rows=None), "rows: other content"),
        (changed(parts="p"), changed(parts="p", digest="bb"), "rows: other content"),
        (note(), changed(rows=None), None),
    ],
    ids=[
        "the same",
        "other labels of the same length",
        "fewer rows",
        "rows that were not counted",
        "a file less",
        "two more",
        "many more",
        "another path is another input",
        "an old record without files",
        "read whole, then in parts",
        "read in parts, then whole",
        "read whole, then in parts that are others",
        "read whole both times, and changed between the parts",
        "lines that were not counted",
    ],
)
def test_what_differs(known: InputNote, found: InputNote, expected: str | None) -> None:
    assert change_of(known, found) == expected
