"""Bytes that were valid once: a few of them changed, gone, doubled or added.

For tests of whatever reads bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

_Edit = Callable[[bytes], bytes]
_PLACES = st.integers(0, 1 << 16)
_LENGTHS = st.sampled_from([1, 1, 2, 4, 8, 28, 64])


def _edit(kind: str, place: int, length: int, new: bytes) -> _Edit:
    def change(data: bytes) -> bytes:
        at = place % (len(data) + 1)
        rest = data[at + length :]
        match kind:
            case "cut off":
                return data[:at]
            case "drop":
                return data[:at] + rest
            case "double":
                return data[: at + length] + data[at:]
            case "insert":
                return data[:at] + new + data[at:]
            case _:
                return data[:at] + new[:length] + data[at + len(new[:length]) :]

    return change


edits: st.SearchStrategy[_Edit] = st.builds(
    _edit,
    st.sampled_from(["cut off", "drop", "double", "insert", "change"]),
    _PLACES,
    _LENGTHS,
    st.one_of(
        st.binary(min_size=1, max_size=8),
        st.sampled_from([b"\xff" * 4, b"\0" * 4, b"-1", b"99999999999", b"\r\n", b"|", b",", b"$", b"*"]),
    ),
)


def mutated(valid: bytes, *, most: int = 3) -> st.SearchStrategy[bytes]:
    """`valid` after one edit or a few."""

    def apply(changes: list[_Edit]) -> bytes:
        data = valid
        for change in changes:
            data = change(data)
        return data

    return st.lists(edits, min_size=1, max_size=most).map(apply)
