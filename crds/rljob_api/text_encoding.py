"""Texts of files: UTF-8, with a byte order mark or without. Pure; for what reads manifests, rows and templates."""

from __future__ import annotations

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""Marks at the beginning; UTF-32 begins with one of them, or with a NUL."""
_LOOKED_AT = 4


def is_utf_16(beginning: bytes) -> bool:
    """Whether a text that begins so is UTF-16 or UTF-32; without a mark they have a NUL in any ASCII character."""
    return beginning.startswith(_UTF_16) or b"\0" in beginning[:_LOOKED_AT]


def decoded(data: bytes) -> str:
    """The text. ValueError, a predicate with its cure, where it is none."""
    if is_utf_16(data):
        raise ValueError("is UTF-16 or UTF-32. Save it as UTF-8, or convert it: iconv -f UTF-16 -t UTF-8.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"has a byte that is not UTF-8 (number {error.start}). Save it as UTF-8 text.") from error
