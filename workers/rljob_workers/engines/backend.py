"""An engine backend: all that a launcher knows of a kind of engine, and its client.

Values only; the registry of backends is `engines.BACKENDS`. A launcher starts what `command` says, asks `ready` on and
on, and restarts what is silent for too long: it knows neither HTTP bodies nor models.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from rljob_api.names import Role
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import Dtype, ModelSpec
from rljob_api.spec.roles import RoleSpec
from rljob_api.spec.simulation import SimulationSpec
from rljob_workers.engines.base import Engine


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What of a job an engine is started with; where it differs in a later epoch, the engine is replaced."""

    model: ModelSpec
    head_dtype: Dtype
    """Of logits."""
    threads: int
    args: tuple[str, ...] = ()
    """Flags of the server's own, as the job gives them."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the launcher sets for the server."""
    python: str | None = None
    """The interpreter of another environment."""
    tensor_parallel: int = 1
    """Devices of one server."""
    simulation: SimulationSpec | None = None
    """What a server that computes nothing spends its time on."""


def settings_of(spec: RLJobSpec, role: Role) -> EngineSettings:
    """The engines that a job asks for in a role."""
    engine = spec.roles.rollout.engine
    return EngineSettings(
        model=spec.model,
        head_dtype=spec.head_dtype,
        threads=(spec.roles.of(role) or RoleSpec()).threads,
        args=tuple(engine.args),
        env=engine.env,
        python=engine.python,
        tensor_parallel=engine.tensor_parallel,
        simulation=spec.simulation,
    )


@dataclass(frozen=True, slots=True)
class EngineSite:
    """Where one incarnation of an engine computes, listens and keeps files."""

    port: int
    """Of 127.0.0.1."""
    devices: tuple[str, ...]
    """All that it sees, as CUDA_VISIBLE_DEVICES names them; none: it computes on the CPU."""
    folder: Path
    """Its own, in memory: empty before each start, removed after each end. Short enough for names of sockets."""


def nothing() -> None:
    """What most kinds of engines have to do before their start."""


@dataclass(frozen=True, slots=True)
class Fork:
    """The server runs in a fork of the launcher, which has the common imports behind it.

    The launcher listens: a connection that is made while the server is started or restarted waits, and is not refused.
    """

    serve: Callable[[socket.socket, str], int]
    """Serves on the listening socket as the given incarnation; returns the exit code. What it needs beyond the common
    imports it imports itself, in the child."""


@dataclass(frozen=True, slots=True)
class Exec:
    """The server is a program of its own, which binds the port that its command line names.

    With SO_REUSEADDR, as servers do: the launcher keeps the port bound, so that no other process gets it between two
    incarnations.
    """

    arguments: tuple[str, ...]
    """The program and its arguments."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside the launcher's, with thread pools as large as `threads`; the job's own variables come last."""
    prepare: Callable[[], None] = nothing
    """What is done in the child before the program takes its place, such as to write files that it reads."""


Command: TypeAlias = Fork | Exec


@dataclass(frozen=True, slots=True)
class Ready:
    """How a server is asked whether it is up; never by an endpoint that generates."""

    path: str
    """Of a GET request."""
    accepts: Callable[[int], bool]
    """Whether this status is the answer of a server that is up: until then it starts, and later it is silent."""


@dataclass(frozen=True, slots=True)
class EngineBackend:
    """One kind of engine."""

    kind: str
    command: Callable[[EngineSettings, EngineSite], Command]
    """How it is started."""
    ready: Ready
    client: Callable[[str, Path, RLJobSpec], Engine]
    """Talks to a job's server at a URL whose present incarnation is in the file (`engines.incarnation`); sends
    nothing yet."""
    parts: str | None = None
    """Titles of processes that its server begins and cannot do without, as a regular expression for their beginnings.
    The launcher ends an engine that has lost one; None: the server is one process."""
    preload: Callable[[], None] = nothing
    """Imports what forked servers share, before anything is forked; imports only."""
