"""Pods of a local run: launchers that the preloaded parent forks. Facts about them, their creation, their end.

The parent speaks JSON lines over a socket pair (`rljob_api.wire.processes`). A parent that dies takes its launchers
with it; it is infrastructure and started again, and the pods are created again when the core decides so.
"""

import asyncio
import socket
import sys
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from rljob_api.machine.process_stat import is_stopped
from rljob_api.wire.identity import PodKey
from rljob_api.wire.processes import (
    PARENT_MESSAGE,
    LauncherExited,
    LauncherSpawned,
    ParentReady,
    Preloads,
    SpawnLauncher,
)
from rljob_operator.core import PodFact, PodState
from rljob_operator.local import processes
from rljob_operator.local.device_placement import PodDevices
from rljob_operator.local.run_folder import RunFolder

IMPORTS = "the preloaded parent imports the workers' libraries"
"""What a pod waits for that no parent can fork yet."""

LEAVING_SECONDS = 10.0
"""A launcher that got SIGTERM has ended by then, or is killed."""


class Pods:
    """The newest incarnation of every pod, and the line to the parent."""

    def __init__(self, folder: RunFolder, devices: PodDevices, changed: Callable[[], None], preloads: Preloads) -> None:
        """`preloads` is what the parent imports."""
        self._folder = folder
        self._devices = devices
        self._changed = changed
        self._preloads = preloads
        self._facts: dict[PodKey, PodFact] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.Task[None] | None = None
        self._unsent: list[SpawnLauncher] = []
        """Asked for while no parent ran: the next one begins with them."""
        self._leaving: dict[str, int] = {}
        """Uid of a pod that got SIGTERM -> its launcher."""
        self.parent_ready_at: float | None = None
        """Unix time in seconds; None while it imports. What was asked of it before waits from here on."""

    async def launch_parent(self) -> asyncio.subprocess.Process:
        """Starts the preloaded parent; what is sent to it before its imports are done waits in the socket."""
        ours, theirs = socket.socketpair()
        argv = [sys.executable, "-m", "rljob_workers.launcher.parent"]
        argv += ["--fd", str(theirs.fileno())]
        argv += ["--backends", ",".join(sorted(self._preloads.trainers))]
        argv += ["--engine", self._preloads.engine] if self._preloads.engine else []
        argv += ["--tokenizer-in-folder"] if self._preloads.tokenizer_in_folder else []
        self.parent_ready_at = None
        process = await processes.start(argv, self._folder.log("parent"), pass_fds=(theirs.fileno(),))
        theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._reader = asyncio.create_task(self._read(reader), name="read parent")
        unsent, self._unsent = self._unsent, []
        for request in unsent:
            if self._of(request.pod_uid)[1] is not None:  # not given up meanwhile
                self._send(self._writer, request)
        return process

    def parent_ended(self) -> None:
        """Every launcher has died with it."""
        self._leaving.clear()
        self._close()
        for key, fact in self._facts.items():
            if fact.state is not PodState.EXITED:
                self._facts[key] = _ended(fact, None, "its preloaded parent died")
        self._changed()

    def create(self, key: PodKey) -> None:
        """A new incarnation of this pod, under a new uid. It is pending until a parent has forked it."""
        uid = uuid.uuid4().hex[:12]
        self._facts[key] = PodFact(key, f"{uid}/0", PodState.PENDING, time.time())
        manifest, endpoints = str(self._folder.manifest), str(self._folder.endpoints)
        devices = list(self._devices.get(key, ()))
        request = SpawnLauncher(pod=key, pod_uid=uid, manifest=manifest, endpoints=endpoints, devices=devices)
        if self._writer is None:
            self._unsent.append(request)
        else:
            self._send(self._writer, request)

    @staticmethod
    def _send(writer: asyncio.StreamWriter, request: SpawnLauncher) -> None:
        writer.write(request.model_dump_json(by_alias=True).encode() + b"\n")

    def kill(self, key: PodKey, incarnation: str) -> None:
        """SIGKILL for this incarnation's launcher; its ranks and its engine die with it."""
        fact = self._facts.get(key)
        if fact is not None and fact.incarnation == incarnation and fact.launcher_pid is not None:
            processes.kill(fact.launcher_pid)

    def mark(self, key: PodKey, incarnation: str, *, leaves: bool) -> None:
        """Whether this incarnation is to go: what the deletion cost is to a pod of a Deployment."""
        fact = self._facts.get(key)
        if fact is not None and fact.incarnation == incarnation:
            self._facts[key] = replace(fact, marked=leaves)
            self._changed()

    def keep_only(self, members: Collection[PodKey]) -> None:
        """The job has only these pods: the others get SIGTERM, and are no facts any more."""
        for key in self._facts.keys() - set(members):
            fact = self._facts.pop(key)
            if fact.launcher_pid is None or fact.state is not PodState.RUNNING:
                continue
            uid = fact.incarnation.partition("/")[0]
            self._leaving[uid] = fact.launcher_pid
            processes.terminate(fact.launcher_pid)
            asyncio.get_running_loop().call_later(LEAVING_SECONDS, self._kill_leaving, uid)

    def _kill_leaving(self, uid: str) -> None:
        pid = self._leaving.pop(uid, None)
        if pid is not None:
            processes.kill(pid)

    def facts(self) -> tuple[PodFact, ...]:
        """What the core may know of them."""
        return tuple(
            replace(fact, stopped=_is_stopped(fact), last_message=self._last_output(fact))
            for fact in self._facts.values()
        )

    def _last_output(self, fact: PodFact) -> str:
        return IMPORTS if fact.state is PodState.PENDING and self.parent_ready_at is None else fact.last_message

    def oldest_pending(self) -> float | None:
        """Since when a pod waits for the parent."""
        pending = [fact.started_at for fact in self._facts.values() if fact.state is PodState.PENDING]
        return min(pending) if pending else None

    async def close(self) -> None:
        """Hangs up; the parent ends with its socket."""
        reader = self._reader
        self._close()
        if reader is not None:
            with suppress(asyncio.CancelledError):
                await reader

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while line := await reader.readline():
                self._receive(PARENT_MESSAGE.validate_json(line))

    def _receive(self, message: ParentReady | LauncherSpawned | LauncherExited) -> None:
        match message:
            case ParentReady():
                self.parent_ready_at = time.time()
            case LauncherSpawned():
                key, fact = self._of(message.pod_uid)
                if fact is None or key is None:
                    processes.terminate(message.pid)  # given up before it was forked
                elif fact.state is PodState.PENDING:
                    self._facts[key] = replace(
                        fact, state=PodState.RUNNING, started_at=time.time(), launcher_pid=message.pid
                    )
            case LauncherExited():
                self._leaving.pop(message.pod_uid, None)
                key, fact = self._of(message.pod_uid)
                if fact is not None and key is not None:
                    self._facts[key] = _ended(fact, message.exit_code, self._folder.tail(str(key)))
        self._changed()

    def _of(self, uid: str) -> tuple[PodKey | None, PodFact | None]:
        """The pod whose newest incarnation has this uid; an older incarnation is of no interest any more."""
        return next(((key, fact) for key, fact in self._facts.items() if fact.incarnation == f"{uid}/0"), (None, None))


def _is_stopped(fact: PodFact) -> bool:
    return fact.state is PodState.RUNNING and fact.launcher_pid is not None and is_stopped(fact.launcher_pid)


def _ended(fact: PodFact, exit_code: int | None, last_message: str) -> PodFact:
    return PodFact(
        pod=fact.pod,
        incarnation=fact.incarnation,
        state=PodState.EXITED,
        started_at=fact.started_at,
        launcher_pid=fact.launcher_pid,
        exit_code=exit_code,
        last_message=last_message,
    )
