"""Waits until an engine is up: a real one takes minutes to start, and until then nobody listens at its port.

Called by a rank before it asks its engine anything else, and again when the engine has died.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from rljob_workers.engines.backend import Ready
from rljob_workers.engines.errors import EngineGone, EngineTimeout
from rljob_workers.engines.identity import read_identity

ASK_SECONDS = 5.0
"""For one answer: a server that is still loading may accept a connection and say nothing."""
PAUSE_SECONDS = 0.1
LIVES = 12
"""So many that ended before they were up are enough. An engine that never was up is given up by its launcher before
that (`launcher.vain_starts`), by the name of its exception; this holds for one that was, and does not come back."""


def await_engine(
    url: str, ready: Ready, identity: Path, *, seconds: float, goes_on: Callable[[], bool] = lambda: True
) -> bool:
    """Blocks until the server at `url` is up; False where `goes_on` says that nobody waits for it any more.

    Raises EngineTimeout when one life is not up after `seconds`, EngineGone once it has died LIVES times in its start.
    """
    deadline = time.monotonic() + seconds
    lives: set[str] = set()
    while not _is_up(url, ready):
        if not goes_on():
            return False
        if (life := _life(identity)) - lives:
            lives |= life
            deadline = time.monotonic() + seconds
        if len(lives) > LIVES:
            raise EngineGone(f"The engine at {url} has died {LIVES} times before it was up. Its log says why.")
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


def _life(identity: Path) -> set[str]:
    try:
        return {read_identity(identity).incarnation}
    except EngineGone:  # not started yet
        return set()
