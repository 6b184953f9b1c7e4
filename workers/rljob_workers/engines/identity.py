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


def write_reason(file: Path, incarnation: str, why: str) -> None:
    """Beside the identity in `file`, by whoever is about to end that life."""
    _reason_file(file).write_text(json.dumps({"incarnation": incarnation, "why": why}))


def read_reason(file: Path, incarnation: str) -> str | None:
    """Why that life was ended; None where nobody has said so. Read once it has ended."""
    try:
        said = json.loads(_reason_file(file).read_text())
    except (FileNotFoundError, ValueError):  # cut off, since its writer died
        return None
    return str(said["why"]) if said.get("incarnation") == incarnation else None


def _reason_file(file: Path) -> Path:
    return file.with_suffix(".ended")
