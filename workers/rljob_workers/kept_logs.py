"""Logs that outlive their pods: the last part of each rank's and engine's, and of its incarnation before, as files.

    python -m rljob_workers.kept_logs --role actor --previous

The coordinator writes them beside the checkpoints, as launchers hand them in. It answers with them as long as it runs;
after that a pod with the volume runs this module, which prints the same answer. Its name is part of that pod's command,
also with images of earlier releases, and stays.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rljob_api.cluster import RUN_DIR
from rljob_api.names import EXIT_SUCCEEDED, Role
from rljob_api.wire.logs import LOG_NAME, LOGS_DIR, RETAINED_LOG_CHARACTERS, LogTail, LogTails, pod_of

_PREVIOUS = ".previous"


class RetainedLogs:
    """The files of one job. Written by one coordinator at a time, read by any."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / LOGS_DIR

    def retain(self, tail: LogTail) -> None:
        """Replaces what is retained of this incarnation; what was retained of it becomes the previous."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file, incarnation = self._folder / f"{tail.name}.log", self._folder / f".{tail.name}.life"
        if file.exists() and (not incarnation.exists() or incarnation.read_text() != tail.incarnation):
            file.replace(self._folder / f"{tail.name}{_PREVIOUS}.log")
        beside = self._folder / f".{tail.name}.new"
        beside.write_text(tail.text)
        incarnation.write_text(tail.incarnation)
        beside.replace(file)

    def read(self, role: Role | None, *, previous: bool) -> LogTails:
        """Those of a role, or all."""
        return LogTails(logs=list(self._read(role, _PREVIOUS if previous else "")))

    def _read(self, role: Role | None, suffix: str) -> Iterator[LogTail]:
        for file in sorted(self._folder.glob("*.log")):
            name = file.name.removesuffix(f"{suffix}.log")
            if re.match(LOG_NAME, name) and (role is None or pod_of(name).role is role):
                text = file.read_text(errors="replace")[-RETAINED_LOG_CHARACTERS:]
                yield LogTail(name=name, incarnation="kept", text=text)


def main(arguments: Sequence[str]) -> int:
    """Prints what is retained as JSON."""
    parser = argparse.ArgumentParser(prog="python -m rljob_workers.kept_logs")
    parser.add_argument("--run-dir", type=Path, default=Path(RUN_DIR))
    parser.add_argument("--role", type=Role, default=None)
    parser.add_argument("--previous", action="store_true")
    options = parser.parse_args(arguments)
    found = RetainedLogs(options.run_dir).read(options.role, previous=options.previous)
    sys.stdout.write(json.dumps(found.model_dump(mode="json")) + "\n")
    return EXIT_SUCCEEDED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
