"""Ends an engine that answers but does nothing, so that its launcher starts the next life.

For the engine's own rank, which alone can tell: a server whose scheduler hangs still answers whoever asks whether it
lives. Both are children of one launcher, which reports the death and starts the engine again.
"""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

from rljob_api.process_stat import PARENT, stat_of
from rljob_workers.engines.errors import EngineGone
from rljob_workers.engines.identity import read_identity, write_reason

GONE_SECONDS = 10.0
"""A killed process is gone at once; one in the middle of device I/O takes longer, and is no longer waited for."""


def end_engine(identity: Path, why: str) -> str | None:
    """SIGKILL of the life that was started last, and waits until its process has ended: it answers nobody any more.

    Its incarnation, or None where that has ended by itself. `why` is what its launcher says of the end.

    Between its end and the next start the number of its process may be another's, which is no child of the launcher's:
    a process is held first, then looked at, then ended.
    """
    try:
        life = read_identity(identity)
        held = os.pidfd_open(life.pid)
    except (EngineGone, ProcessLookupError):
        return None
    try:
        stat = stat_of(life.pid)
        if stat is None or int(stat[PARENT]) != os.getppid():
            return None
        write_reason(identity, life.incarnation, why)
        signal.pidfd_send_signal(held, signal.SIGKILL)
        _wait(held)
    except ProcessLookupError:
        return None
    finally:
        os.close(held)
    return life.incarnation


def _wait(held: int) -> None:
    """Its launcher collects it; whether it has done so yet makes no difference here."""
    ended = select.poll()
    ended.register(held, select.POLLIN)
    ended.poll(GONE_SECONDS * 1000)
