"""Which life of an engine answers behind its port, as its launcher says: real servers send nothing of the kind.

Before each start the launcher writes a file; a client reads it before and after each request, and takes no answer where
it has changed meanwhile.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rljob_workers.engines.errors import EngineGone


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """One life of an engine."""

    incarnation: str
    """12 hex digits."""
    pid: int
    """Of the server; with several processes, of the first."""
    url: str


def write_identity(file: Path, identity: EngineIdentity) -> None:
    """Before the server can answer, and whole for readers from its first moment on."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(asdict(identity)))
    beside.replace(file)


def read_identity(file: Path) -> EngineIdentity:
    """The life that was started last. Raises EngineGone where there was none yet."""
    try:
        return EngineIdentity(**json.loads(file.read_text()))
    except FileNotFoundError as error:
        raise EngineGone(f"{file} is not there: the engine was not started yet.") from error
