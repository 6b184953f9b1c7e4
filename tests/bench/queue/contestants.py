"""Who is compared: our queue over TCP and over Unix sockets, the peer with its allocator as it is and tuned.

A `Side` is one of them, set up for one workload: its servers and its clients, each a process. All sides of a workload
stand side by side and take turns; what a side does outside of what is timed (results, training, clearing) is its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from os import cpu_count
from pathlib import Path
from typing import Any

from tests.bench.queue.channel import START_SECONDS, Child
from tests.bench.queue.job import OurJob
from tests.bench.queue.servers import Transport
from tests.bench.queue.shape import make_shape
from tests.bench.queue.workloads import Workload

TUNED_ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_ARENA_MAX": "1",
}
_PEER_ENVIRONMENT = {
    # Its default of 8 threads is above the cores of a small machine, and it warns of that at every call.
    "TQ_NUM_THREADS": str(min(8, cpu_count() or 1)),
    "TQ_LOGGING_LEVEL": "ERROR",
}


class Side:
    """Servers and clients of one contestant for one workload."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.clients: list[Child] = []

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def clear(self, turn: int) -> None:
        """Ends the round: nothing of it is left. Outside of what is timed."""
        for client in self.clients:
            client.send("finish", turn=turn)
        for client in self.clients:
            client.answer()
        self.clients[0].ask("clear", turn=turn)

    def script_seconds(self) -> float | None:
        """Time in the control Redis's functions since it started; None where there is none."""
        return None

    def _child(self, module: str, environment: Mapping[str, str]) -> Child:
        child = Child(f"tests.bench.queue.{module}", environment)
        self._stack.callback(child.close)
        return child


class Contestant(ABC):
    """Frozen description; `open` makes a `Side` of it."""

    name: str
    num_units: int

    @abstractmethod
    def open(self, workload: Workload, num_clients: int) -> Side: ...


@dataclass(frozen=True)
class OurQueue(Contestant):
    name: str
    transport: Transport
    program: Path | None = None
    """Redis server; None: what the product would find."""
    num_units: int = 2

    def open(self, workload: Workload, num_clients: int) -> Side:
        return _OurSide(self, workload, num_clients)


class _OurSide(Side):
    def __init__(self, contestant: OurQueue, workload: Workload, num_clients: int) -> None:
        super().__init__()
        try:
            self._job = OurJob(contestant.transport, contestant.num_units, contestant.program, make_shape(workload))
            self._stack.callback(self._job.close)
            self.clients = [self._child("our_client", {}) for _ in range(num_clients)]
            for client in self.clients:
                client.send(
                    "open",
                    endpoints=self._job.endpoints.model_dump_json(),
                    incarnation=self._job.begin_incarnation().model_dump_json(),
                    workload=asdict(workload),
                )
            for client in self.clients:
                client.answer(START_SECONDS)
        except BaseException:
            self._stack.close()
            raise

    def clear(self, turn: int) -> None:
        super().clear(turn)
        self._job.publish(turn + 1)
        self._job.admin.sweeper.sweep()

    def script_seconds(self) -> float | None:
        return self._job.servers.script_seconds()

    def __exit__(self, *error: object) -> None:
        broken = self._job.admin.check() if error[0] is None else []
        super().__exit__(*error)
        assert not broken, f"invariants of the queue are broken: {broken}"


@dataclass(frozen=True)
class Peer(Contestant):
    name: str
    num_units: int
    environment: Mapping[str, str] = field(default_factory=dict)

    def open(self, workload: Workload, num_clients: int) -> Side:
        return _PeerSide(self, workload, num_clients)


class _PeerSide(Side):
    def __init__(self, contestant: Peer, workload: Workload, num_clients: int) -> None:
        super().__init__()
        environment = {**_PEER_ENVIRONMENT, **contestant.environment}
        try:
            controller = self._child("peer_server", environment)
            units = [self._child("peer_server", environment) for _ in range(contestant.num_units)]
            self.clients = [self._child("peer_client", environment) for _ in range(num_clients)]
            controller.send("controller")
            for unit in units:
                unit.send("unit")
            info: dict[str, Any] = controller.answer(START_SECONDS)
            infos = [unit.answer(START_SECONDS) for unit in units]
            for number, client in enumerate(self.clients):
                client.send("open", name=f"client{number}", controller=info, units=infos, workload=asdict(workload))
            for client in self.clients:
                client.answer(START_SECONDS)
        except BaseException:
            self._stack.close()
            raise


def contestants(servers: Mapping[str, Path] | None = None) -> list[Contestant]:
    """All sides; ours on each of `servers` (name -> program), without any on the one that the product would find."""
    programs: Mapping[str, Path | None] = servers or {"": None}
    ours: list[Contestant] = [
        OurQueue(f"ours {transport.value} {name}".strip(), transport, program)
        for name, program in programs.items()
        for transport in Transport
    ]
    return [
        *ours,
        Peer("peer 1", 1),
        Peer("peer 2", 2),
        Peer("peer 1 tuned", 1, TUNED_ALLOCATOR),
        Peer("peer 2 tuned", 2, TUNED_ALLOCATOR),
    ]


def chosen(sides: Sequence[Contestant], wanted: Sequence[str]) -> list[Contestant]:
    """The sides of these names; a name that no side has stands for all that begin with it."""
    picked: list[Contestant] = []
    for name in wanted:
        found = [one for one in sides if one.name == name] or [one for one in sides if one.name.startswith(name)]
        if not found:
            known = ", ".join(one.name for one in sides)
            raise ValueError(f"--sides: {name!r} is no side. Known: {known}.")
        picked += [one for one in found if one not in picked]
    return picked
