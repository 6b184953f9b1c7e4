"""Jobs to begin with: a manifest each, and what it names. `rljob init` writes them; no checkout is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import resources


def _reverse_and_end() -> str:
    """Two digits, and the same backwards with a full stop: a row for each number below 100."""
    rows = ({"prompt": f"{number:02}=", "label": f"{number:02}"[::-1] + "."} for number in range(100))
    return "".join(f"{json.dumps(row)}\n" for row in rows)


STARTERS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "quickstart": {"data/reverse-and-end.jsonl": _reverse_and_end}
}
"""Files beside the manifest NAME.yaml, by its name, and the functions that make their text."""


def files_of(name: str) -> dict[str, str]:
    """Path and text of every file of a starter, the manifest first."""
    manifest = resources.files(__name__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return {f"{name}.yaml": manifest, **{path: make() for path, make in STARTERS[name].items()}}
