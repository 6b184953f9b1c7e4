"""Counts the starts of a pod's container, in a folder that outlives the container and not the pod.

Called by `pod` before anything else: also a start that fails right after is one. Standard library only.
"""

from __future__ import annotations

from pathlib import Path

FILE = "container-starts"


def count_start(folder: Path) -> int:
    """The restart count of this container: 0 for the first start in this pod. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    try:
        count = int(path.read_text()) + 1
    except (FileNotFoundError, ValueError):  # half a number: the folder's file system lost what was not yet on disk
        count = 0
    beside = path.with_suffix(".new")
    beside.write_text(str(count))
    beside.replace(path)
    return count
