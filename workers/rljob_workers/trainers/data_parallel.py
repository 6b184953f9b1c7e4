"""The data-parallel group of a role: sums over its ranks, with deadlines, and what they agree on.

Used by trainers and by the actor. While a collective blocks, a second thread beats for the rank (`BackgroundBeats`),
for as long as the collective may take. Knows no coordinator: the address comes from the caller.
"""

from __future__ import annotations

import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Protocol, Self

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported without saying so

from rljob_api.failpoints import failpoint
from rljob_workers.devices import group_backend, own_device


class TrainerError(Exception):
    """Anything below."""


class GroupError(TrainerError):
    """The data-parallel group cannot go on."""


class GroupNotComplete(GroupError):
    """Not all ranks joined in time."""


class GroupBroken(GroupError):
    """A rank is gone or did not answer in time."""


BEAT_SECONDS = 0.25
"""Between two beats; as often as a waiting main loop turns. A block that is shorter sends none."""


class BackgroundBeats:
    """Calls `give(waiting_for)` again and again while the block runs; for `limit_seconds` at most.

    After the limit the block counts as hanging: the beats stop, so that the coordinator detects it. `give` must not
    raise.
    """

    def __init__(self, give: Callable[[str], None], waiting_for: str, *, limit_seconds: float) -> None:
        self._give = give
        self._waiting_for = waiting_for
        self._limit_seconds = limit_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="background beats", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        until = time.monotonic() + self._limit_seconds
        while not self._over.wait(BEAT_SECONDS) and time.monotonic() < until:
            self._give(self._waiting_for)


STORE_BACKLOG = 2048
"""Every rank connects at once."""


BEHIND_SECONDS = 5.0
"""Timeout of the request to rank 0 for the sums that each rank has entered, once the group is broken."""


FIRST_PAUSE_SECONDS = 0.00005


LONGEST_PAUSE_SECONDS = 0.002
"""Between two polls of a sum that is not done: a small one takes a tenth of a millisecond, a large one many."""


class CollectiveCounter(Protocol):
    """Counts the collectives that this rank enters and leaves."""

    def enter_collective(self) -> None:
        """This rank enters its next one."""

    def leave_collective(self) -> None:
        """This rank has left it: the collective completed on all ranks."""


class NoCounter:
    """Counts nothing."""

    def enter_collective(self) -> None:
        """Nothing."""

    def leave_collective(self) -> None:
        """Nothing."""


def no_wait(waiting_for: str) -> None:
    """No session has to be kept alive."""


@dataclass(frozen=True, slots=True)
class RankVote:
    """What one rank brings to an agreement."""

    has_rows: bool
    """Whether its rows of the slice are at hand."""
    drains: bool
    """Whether it is ordered to drain."""
    num_micro_batches: int
    """Into how many it would cut its rows."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all ranks know after an agreement, each the same."""

    all_have_rows: bool
    draining: tuple[int, ...]
    """The ranks that are ordered to drain."""
    num_micro_batches: int
    """The most of any rank."""


class DataParallelGroup(ABC):
    """The ranks that train one policy together."""

    rank: int
    world: int

    @abstractmethod
    def add_up(self, values: torch.Tensor, what: str) -> None:
        """Replaces `values` by their sum over all ranks, bit for bit the same on each; blocks for all.

        Raises GroupBroken, which names `what`, after the group's timeout or when a rank is gone.
        """

    @abstractmethod
    def broadcast(self, values: torch.Tensor, source: int, what: str) -> None:
        """Replaces `values`, on the host and of one shape and dtype on all ranks, by those of rank `source`.

        Raises GroupBroken as a sum does.
        """

    @abstractmethod
    def part(self, ranks: Sequence[Sequence[int]]) -> DataParallelGroup:
        """The group of those ranks that this rank is listed with; a collective, of a whole group only.

        `ranks` has every rank once, and is the same on all. A rank's number in its part is its place in the list.
        """

    @abstractmethod
    def collective(self, what: str, passes: int = 1) -> AbstractContextManager[None]:
        """Around whatever meets the other ranks inside a library, where this thread may be blocked for long.

        Entered by all ranks in one order, as a sum is. A second thread sends the beats meanwhile: the block must not
        send any itself. It may take `passes` times as long as a sum. A block within a block is part of the outer one.
        Raises GroupBroken, which names `what`, in place of the library's error when a rank is gone or does not come;
        every other error stays as it is.
        """

    @abstractmethod
    def close(self) -> None:
        """Leaves the group. May be called twice."""


class SingleRank(DataParallelGroup):
    """A group of one: nothing to add, no rank to wait for."""

    rank = 0
    world = 1

    def add_up(self, values: torch.Tensor, what: str) -> None:
        """The sum of one is itself."""

    def broadcast(self, values: torch.Tensor, source: int, what: str) -> None:
        """It has its own."""

    def part(self, ranks: Sequence[Sequence[int]]) -> DataParallelGroup:  # noqa: ARG002 -- there is one way
        """Itself."""
        return self

    def collective(self, what: str, passes: int = 1) -> AbstractContextManager[None]:  # noqa: ARG002 -- no rank is met
        """No rank is met."""
        return nullcontext()

    def close(self) -> None:
        """Nothing to leave."""


def agree(group: DataParallelGroup, vote: RankVote, what: str) -> Agreement:
    """The votes of all ranks, once all have voted; a collective, as a sum over the ranks is one.

    No rank may go on, or leave, on its own vote alone: the others would wait for it until the deadline.
    """
    votes = torch.zeros(group.world, 3, dtype=torch.int64)
    votes[group.rank] = torch.tensor([vote.has_rows, vote.drains, vote.num_micro_batches])
    group.add_up(votes, f"the agreement on {what}")
    has_rows, drains, num_micro_batches = votes.unbind(1)
    return Agreement(
        all_have_rows=bool(has_rows.all()),
        draining=tuple(drains.nonzero().flatten().tolist()),
        num_micro_batches=int(num_micro_batches.max()),
    )


@dataclass(frozen=True, slots=True, eq=False)
class HostedStore:
    """The store at which the ranks meet; it lives as long as this object."""

    address: str
    """host:port."""
    store: TCPStore


def host_store(host: str, *, timeout_seconds: float) -> HostedStore:
    """Opens the rendezvous on a free port of `host`; by rank 0.

    The store asks for no secret and would listen on every interface by itself: it gets a socket of this host.
    """
    listener = socket.create_server((host, 0), backlog=STORE_BACKLOG)
    port = listener.getsockname()[1]
    store = TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_seconds),
        master_listen_fd=listener.detach(),
    )
    return HostedStore(f"{host}:{port}", store)


def join_group(
    address: str,
    rank: int,
    world: int,
    *,
    timeout_seconds: float,
    hosted: HostedStore | None = None,
    on_wait: Callable[[str], None] = no_wait,
    counter: CollectiveCounter | None = None,
) -> DataParallelGroup:
    """Joins the group that meets at `address`; blocks until all `world` ranks are there.

    `timeout_seconds` bounds joining and every later sum. `hosted` is what rank 0 opened. `on_wait` is called again and
    again, with what is waited for, while a sum waits for other ranks; it must not raise. `counter` may lie
    in memory that outlives this process, so that the launcher reads how far it got. Raises GroupNotComplete.
    """
    timeout = timedelta(seconds=timeout_seconds)
    try:
        store = hosted.store if hosted is not None else _connect(address, timeout)
        places = Places(store, rank, range(world))
        backend = group_backend(own_device())
        distributed.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    except (RuntimeError, ValueError) as error:  # torch's DistError is a RuntimeError
        raise GroupNotComplete(
            f"data-parallel group: rank {rank} of {world} waited {timeout_seconds:g} s at {address} for the "
            "other ranks. Check that every rank of the role runs and reaches that address."
        ) from error
    return GlooGroup(rank, range(world), timeout_seconds, places, on_wait, counter or NoCounter())


class Places:
    """How many sums each rank has entered, in the rendezvous store: after a deadline they name the ranks behind."""

    def __init__(self, store: TCPStore, rank: int, members: Sequence[int], name: str = "") -> None:
        """`members` are ranks of the whole group, `rank` this process's; `name` sets those of a part apart."""
        self.store = store
        self._members = members
        self._own = _place_of(name, rank)
        self._all = [_place_of(name, member) for member in members]
        self._number = 0
        self.enter("the group")

    def enter(self, what: str) -> None:
        """This rank enters its next sum. One message to rank 0, whose answer is not awaited."""
        self.store.set(self._own, f"{self._number} {what}")
        self._number += 1

    def behind(self) -> str:
        """A sentence that names the ranks which entered the fewest sums."""
        try:
            self.store.set_timeout(timedelta(seconds=BEHIND_SECONDS))  # rank 0 may be the one that is stopped
            entered = [place.decode().partition(" ") for place in self.store.multi_get(self._all)]
        except RuntimeError:
            return "Rank 0, where the ranks meet, is gone."
        numbers = [int(number) for number, _, _ in entered]
        lowest, highest = min(numbers), max(numbers)
        if lowest == highest:
            return "All ranks had come to it: one of them is gone."
        late = [place for place, number in enumerate(numbers) if number == lowest]
        named = ", ".join(f"rank {self._members[place]}" for place in late)
        return f"It waited for {named}, last seen in {entered[late[0]][2]}."


class GlooGroup(DataParallelGroup):
    """Several processes, host memory, Gloo."""

    def __init__(
        self,
        rank: int,
        members: Sequence[int],
        timeout_seconds: float,
        places: Places,
        on_wait: Callable[[str], None],
        counter: CollectiveCounter,
        process_group: distributed.ProcessGroup | None = None,
    ) -> None:
        """`members` are ranks of torch's default group, `rank` is this one's place among them.

        `process_group` is of these ranks; None: they are all.
        """
        self.rank = rank
        self.world = len(members)
        self._members = members
        self._timeout_seconds = timeout_seconds
        self._places = places
        self._on_wait = on_wait
        self._counter = counter
        self._process_group = process_group
        self._is_within = False

    def add_up(self, values: torch.Tensor, what: str) -> None:
        """One all-reduce over `values`; this thread goes on sending beats meanwhile."""
        self._meet(f"add up {what}", what, partial(distributed.all_reduce, values, group=self._process_group))

    def broadcast(self, values: torch.Tensor, source: int, what: str) -> None:
        """As a sum, of which the others' terms do not count."""
        send = partial(distributed.broadcast, values, src=self._members[source], group=self._process_group)
        self._meet(f"share {what}", what, send)

    def part(self, ranks: Sequence[Sequence[int]]) -> DataParallelGroup:
        """All ranks make all parts, in the order of the list.

        What a part does is not counted for the launcher: parts go on at their own pace, and a rank that is behind in
        its own would be taken for one that is behind all others. It is behind in the next collective of all.
        """
        own = next(place for place, members in enumerate(ranks) if self.rank in members)
        if len(ranks[own]) == self.world:
            return self
        timeout = timedelta(seconds=self._timeout_seconds)
        with self.collective("the parts of the group"):
            groups = [distributed.new_group(list(members), timeout=timeout, backend="gloo") for members in ranks]
        if len(ranks[own]) == 1:
            return SingleRank()
        group = groups[own]
        assert isinstance(group, distributed.ProcessGroup), "torch gives a number for groups of others"
        return GlooGroup(
            ranks[own].index(self.rank),
            ranks[own],
            self._timeout_seconds,
            Places(self._places.store, self.rank, ranks[own], f"part-{own}/"),
            self._on_wait,
            NoCounter(),
            group,
        )

    def _meet(self, doing: str, what: str, call: Callable[..., distributed.Work | None]) -> None:
        with self._naming(doing):
            if self._is_within:
                call()
                return
            self._enter(what)
            work = call(async_op=True)
            assert work is not None, "this rank is of the group"
            failpoint("collective.entered")
            pause = FIRST_PAUSE_SECONDS
            while not work.is_completed():
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                self._on_wait(self._waiting_for(what))
            work.wait()
            self._counter.leave_collective()

    @contextmanager
    def collective(self, what: str, passes: int = 1) -> Iterator[None]:
        """Counts as one sum in `Places`."""
        if self._is_within:
            yield
            return
        self._is_within = True
        try:
            with self._naming(f"go through {what}"):
                self._enter(what)
                limit = self._timeout_seconds * max(1, passes)
                with BackgroundBeats(self._on_wait, self._waiting_for(what), limit_seconds=limit):
                    failpoint("collective.section")
                    yield
                self._counter.leave_collective()
        finally:
            self._is_within = False

    def _enter(self, what: str) -> None:
        self._counter.enter_collective()
        self._places.enter(what)

    @contextmanager
    def _naming(self, doing: str) -> Iterator[None]:
        """The library's error that a rank is gone, with what this rank was `doing` and whom it waited for."""
        try:
            yield
        except RuntimeError as error:
            if not _is_of_the_group(error):
                raise
            raise GroupBroken(
                f"data-parallel group: rank {self._members[self.rank]} of {self._size} could not {doing}: another rank "
                f"is gone or did not come within {self._timeout_seconds:g} s. {self._places.behind()} ({error})"
            ) from error

    @property
    def _size(self) -> str:
        if self._process_group is None:
            return str(self.world)
        return f"the {self.world} that share rows"

    def _waiting_for(self, what: str) -> str:
        return f"{what}, with {self.world - 1} other ranks"

    def close(self) -> None:
        """Leaves; the others' next sum fails. A part ends with the whole."""
        if distributed.is_initialized() and self._process_group is None:
            distributed.destroy_process_group()


def _is_of_the_group(error: RuntimeError) -> bool:
    """Whether the error is about other ranks.

    Gloo raises a plain RuntimeError, as much else in torch does: shapes that do not fit, memory that runs out. But its
    messages begin with a file of its own.
    """
    return isinstance(error, distributed.DistError) or "/gloo/" in str(error)


def _place_of(name: str, rank: int) -> str:
    return f"rljob/entered/{name}{rank}"


def _connect(address: str, timeout: timedelta) -> TCPStore:
    host, _, port = address.rpartition(":")
    return TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timeout)
