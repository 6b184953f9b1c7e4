"""An engine backend: all that a launcher knows of a kind of engine, and whom the roles talk to.

Values only; the registry of backends is `registry`. A launcher starts what `command` says, asks `ready` on and on, and
restarts what is silent for too long: it knows neither HTTP bodies nor models.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from rljob_api.names import Role
from rljob_api.spec import ModelSpec, RLJobSpec, RoleSpec
from rljob_workers.engines.base import Engine


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What of a job an engine is started with; where it differs in a later epoch, the engine is replaced."""

    model: ModelSpec
    threads: int


def settings_of(spec: RLJobSpec, role: Role) -> EngineSettings:
    """The engines that a job asks for in a role."""
    return EngineSettings(spec.model, (spec.roles.of(role) or RoleSpec()).threads)


@dataclass(frozen=True, slots=True)
class Fork:
    """The server runs in a fork of the launcher, which has the common imports behind it.

    The launcher listens: whoever connects while the server is started or restarted waits, and is not refused.
    """

    serve: Callable[[socket.socket, str], int]
    """Serves on the listening socket as the given incarnation; returns the exit code. What it needs beyond the common
    imports it imports itself, in the child."""


@dataclass(frozen=True, slots=True)
class Exec:
    """The server is a program of its own, which binds the port that its command line names.

    With SO_REUSEADDR, as servers do: the launcher keeps the port bound, so that nobody else gets it between two lives.
    It sends no incarnation: the launcher writes it down before it starts the program (`engine-{i}.json`).
    """

    arguments: tuple[str, ...]
    """The program and its arguments. Its environment is the launcher's, with thread pools as large as `threads`."""


Command: TypeAlias = Fork | Exec


@dataclass(frozen=True, slots=True)
class Ready:
    """How a server is asked whether it lives; never by an endpoint that generates."""

    path: str
    """Of a GET request."""
    accepts: Callable[[int], bool]
    """Whether this status is the answer of a server that is up: until then it starts, and later it is silent."""


@dataclass(frozen=True, slots=True)
class EngineBackend:
    """One kind of engine."""

    kind: str
    command: Callable[[EngineSettings, int], Command]
    """How it is started on a port of 127.0.0.1."""
    ready: Ready
    startup_seconds: float
    """How long a start may take, until it is ready."""
    client: Callable[[str], Engine]
    """Talks to the server at a URL; sends nothing yet."""
