"""The Lua functions of the adapter's control plane as one Redis library.

For `session`. Names carry a hash of the text, so that functions of another build are never mistaken for ours.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from rljob_workers.transfer_queue.control.library import Library

_PARTS = ("state", "chunks", "consumers", "units", "rows")
"""Files of `lua/`, in the order in which they build on each other."""


@cache
def library() -> Library:
    """The same for every client of this build."""
    folder = resources.files(__package__) / "lua"
    body = "\n".join((folder / f"{part}.lua").read_text() for part in _PARTS)
    suffix = "_" + hashlib.sha256(body.encode()).hexdigest()[:12]
    return Library(f"#!lua name=rljob_compat{suffix}\nlocal SUFFIX = '{suffix}'\n{body}", suffix)
