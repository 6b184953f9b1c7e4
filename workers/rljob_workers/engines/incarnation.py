"""One incarnation of an engine's server process: its identity file, the wait until it is up, and its end.

The launcher writes the file before each start; a rank reads it before and after each request, and ends a process that
answers and computes nothing. Torch-free; knows no kind of engine.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from rljob_api.machine.process_stat import PARENT, stat_of
from rljob_workers.engines.backend import Ready
from rljob_workers.engines.base import EngineGone, EngineTimeout


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """One incarnation of an engine."""

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
    """The incarnation that was started last. Raises EngineGone where there was none yet."""
    try:
        return EngineIdentity(**json.loads(file.read_text()))
    except FileNotFoundError as error:
        raise EngineGone(f"{file} is not there: the engine was not started yet.") from error


def write_reason(file: Path, incarnation: str, why: str) -> None:
    """Beside the identity in `file`, by the process that is about to end that incarnation."""
    _reason_file(file).write_text(json.dumps({"incarnation": incarnation, "why": why}))


def read_reason(file: Path, incarnation: str) -> str | None:
    """Why that incarnation was ended; None where no reason was written. Read once it has ended."""
    try:
        reason = json.loads(_reason_file(file).read_text())
    except (FileNotFoundError, ValueError):  # cut off, since its writer died
        return None
    return str(reason["why"]) if reason.get("incarnation") == incarnation else None


def _reason_file(file: Path) -> Path:
    return file.with_suffix(".ended")


ASK_SECONDS = 5.0
"""For one answer: a server that is still loading may accept a connection and not answer."""


PAUSE_SECONDS = 0.1


FAILED_STARTS = 12
"""So many failed starts are enough. The launcher gives up an engine that never was up before that
(`launcher.engine_deaths`), by the name of its exception; this holds for one that was, and does not come back."""


def await_engine(
    url: str, ready: Ready, identity: Path, *, seconds: float, goes_on: Callable[[], bool] = lambda: True
) -> bool:
    """Blocks until the server at `url` is up; False once `goes_on()` is.

    Raises EngineTimeout when one incarnation is not up after `seconds`, EngineGone once FAILED_STARTS
    have died in their starts.
    """
    deadline = time.monotonic() + seconds
    seen: set[str] = set()
    while not _is_up(url, ready):
        if not goes_on():
            return False
        if (started := _started(identity)) - seen:
            seen |= started
            deadline = time.monotonic() + seconds
        if len(seen) > FAILED_STARTS:
            raise EngineGone(f"The engine at {url} has died {FAILED_STARTS} times before it was up. Its log says why.")
        if time.monotonic() >= deadline:
            raise EngineTimeout(
                f"The engine at {url} has not answered {ready.path} for {seconds:.0f} s. Look into its log, or"
                " raise roles.rollout.engine.startupTimeoutSeconds."
            )
        time.sleep(PAUSE_SECONDS)
    return True


def _is_up(url: str, ready: Ready) -> bool:
    where = urlsplit(url)
    connection = HTTPConnection(where.hostname or "", where.port, timeout=ASK_SECONDS)
    try:
        connection.request("GET", ready.path)
        return ready.accepts(connection.getresponse().status)
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _started(identity: Path) -> set[str]:
    try:
        return {read_identity(identity).incarnation}
    except EngineGone:  # not started yet
        return set()


GONE_SECONDS = 10.0
"""A killed process is gone at once; one in the middle of device I/O takes longer, and is no longer waited for."""


def end_engine(identity: Path, why: str) -> str | None:
    """SIGKILL of the incarnation that was started last, and waits until its process has ended: it answers no more.

    Its incarnation, or None where that has ended by itself. The launcher reports `why` as the reason of the end.

    Between its end and the next start the number of its process may be another's, which is no child of the launcher's:
    a process is held first, then checked, then ended.
    """
    try:
        started = read_identity(identity)
        held = os.pidfd_open(started.pid)
    except (EngineGone, ProcessLookupError):
        return None
    try:
        stat = stat_of(started.pid)
        if stat is None or int(stat[PARENT]) != os.getppid():
            return None
        write_reason(identity, started.incarnation, why)
        signal.pidfd_send_signal(held, signal.SIGKILL)
        _wait(held)
    except ProcessLookupError:
        return None
    finally:
        os.close(held)
    return started.incarnation


def _wait(held: int) -> None:
    """Its launcher collects it; whether it has done so yet makes no difference here."""
    ended = select.poll()
    ended.register(held, select.POLLIN)
    ended.poll(GONE_SECONDS * 1000)
