"""In the place of the process that exports: states that it writes, and answers the signal that ends it with a file."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from rljob_api.wire.checkpoint_report import Answer, ExportQuestion, Progress


def main(question: str) -> None:
    asked = ExportQuestion.model_validate_json(question)

    def end(*_: object) -> None:
        Path(asked.to).touch()
        sys.exit()

    signal.signal(signal.SIGTERM, end)
    answer = Answer(progress=Progress(what="written", done_bytes=1, total_bytes=2))
    sys.stdout.write(f"{answer.model_dump_json()}\n")
    sys.stdout.flush()
    while True:
        time.sleep(0.05)  # no pause(): a signal that comes just before it would be answered by the next one only


if __name__ == "__main__":
    main(sys.argv[2])
