"""Logs of a job that are retained beside its checkpoints: what launchers hand in, and what is answered of it.

The file names and the mark between two incarnations are here as well, since launchers write them and `rljob logs` reads
them.
"""

import re

from pydantic import Field

from rljob_api.base import WireModel
from rljob_api.names import Role
from rljob_api.wire.identity import PodKey

LOGS_DIR = "logs"
"""In the run folder: of a run on one machine whole logs, on a cluster the last part of each."""
RETAINED_LOG_CHARACTERS = 1 << 16
"""Of each log, the newest so many are retained on a cluster."""
LOG_NAME = rf"^({'|'.join(Role)})-\d{{1,6}}\.(\d{{1,4}}|engine(\.\d{{1,4}})?)$"
"""Of a rank or an engine, without the suffix."""
BEGINS = re.compile(r"^=== new life at .* ===$", re.MULTILINE)
"""The line before the first of each incarnation of a rank or engine."""


class LogTail(WireModel):
    """The last part of one log, from the beginning of the newest incarnation of its process on."""

    name: str = Field(pattern=LOG_NAME, max_length=64)
    incarnation: str = Field(alias="life", min_length=1, max_length=128)
    """Another one: what was kept before is of the incarnation before."""
    text: str = Field(max_length=RETAINED_LOG_CHARACTERS)


class LogTails(WireModel):
    """What was asked for, by name."""

    logs: list[LogTail] = Field(default=[], max_length=4096)


def begins_line(at: str) -> str:
    """The mark of an incarnation that begins."""
    return f"=== new life at {at} ===\n"


def pod_of(name: str) -> PodKey:
    """The pod whose log this is."""
    role, _, replica = name.partition(".")[0].rpartition("-")
    return PodKey(role=Role(role), replica=int(replica))


def last_incarnations(text: str) -> tuple[str, str]:
    """What the newest incarnation has written, after its mark, and what the one before it has; "" without one."""
    marks = list(BEGINS.finditer(text))
    if not marks:
        return text, ""
    newest = text[marks[-1].end() :].lstrip("\n")
    before = text[marks[-2].end() if len(marks) > 1 else 0 : marks[-1].start()].lstrip("\n")
    return newest, before
