"""Which life of a server answers: SGLang does not say, so that the launcher's identity file does.

Read before and after each request. A server that nobody of ours started has no file: its connections alone tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rljob_workers.engines.errors import EngineGone
from rljob_workers.engines.identity import read_identity


@dataclass(frozen=True, slots=True)
class LifeFile:
    """The file that the launcher replaces before each start."""

    path: Path | None
    """None: nobody writes one."""
    url: str

    def read(self) -> str | None:
        """The incarnation that serves now; EngineGone where none was started yet."""
        return None if self.path is None else read_identity(self.path).incarnation

    def require(self, asked: str | None) -> None:
        """EngineGone where another life than `asked` serves now."""
        found = self.read()
        if found != asked:
            raise EngineGone(
                f"The engine at {self.url} is another one: {asked} was asked, and now {found} serves. Nothing that it "
                "answered counts."
            )
