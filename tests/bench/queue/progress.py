"""How far the benchmark is, on stderr."""

from __future__ import annotations

import sys
import time


def report(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stderr.flush()
