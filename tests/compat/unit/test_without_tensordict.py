"""A plain install has no tensordict: only who wants the adapter needs it."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys
sys.modules["tensordict"] = None
import rljob_workers
import rljob_workers.transfer_queue.client
try:
    import rljob_transfer_queue
except ImportError as error:
    print(error)
"""


def test_only_the_adapter_needs_tensordict() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "rljob_transfer_queue needs the package tensordict. Install rljob-transfer-queue.\n"
