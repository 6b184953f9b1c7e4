"""The data-parallel group of a role: sums over its ranks, with deadlines.

    hosted = host_store("127.0.0.1", timeout_seconds=60)            # rank 0; it publishes hosted.address
    group = join_group(hosted.address, rank, world, timeout_seconds=60, hosted=hosted)
    group.add_up(gradients, "gradients of train_3")                  # in place, the same sum on every rank
    group.close()

Called by a role (joining) and a trainer (sums). A process joins one group in its life: a rank that lost its group ends,
and the restart table has the next word. Knows no model.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported without saying so

from rljob_workers.trainers.errors import GroupBroken, GroupNotComplete

_LEFT = "rljob/left"
STORE_BACKLOG = 2048
"""Every rank connects at once."""


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
    def leave(self) -> None:
        """Says that rank 0, which alone calls this, comes to no further sum."""

    @abstractmethod
    def is_left(self) -> bool:
        """Whether rank 0 has left: by its word, or because it is gone."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the group. May be called twice."""


class SingleRank(DataParallelGroup):
    """A group of one: nothing to add, nobody to wait for."""

    rank = 0
    world = 1

    def add_up(self, values: torch.Tensor, what: str) -> None:
        """The sum of one is itself."""

    def leave(self) -> None:
        """Nobody waits for it."""

    def is_left(self) -> bool:
        """It is here."""
        return False

    def close(self) -> None:
        """Nothing to leave."""


@dataclass(frozen=True, slots=True, eq=False)
class HostedStore:
    """The store at which the ranks meet; it lives as long as this object."""

    address: str
    """host:port."""
    store: TCPStore


def host_store(host: str, *, timeout_seconds: float) -> HostedStore:
    """Opens the rendezvous on a free port of `host`; by rank 0.

    The store asks nobody for a secret and would listen on every interface by itself: it gets a socket of this host.
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
    address: str, rank: int, world: int, *, timeout_seconds: float, hosted: HostedStore | None = None
) -> DataParallelGroup:
    """Joins the group that meets at `address`; blocks until all `world` ranks are there.

    `timeout_seconds` bounds joining and every later sum. `hosted` is what rank 0 opened. Raises GroupNotComplete.
    """
    timeout = timedelta(seconds=timeout_seconds)
    try:
        store = hosted.store if hosted is not None else _connect(address, timeout)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)
    except (RuntimeError, ValueError) as error:  # torch's DistError is a RuntimeError
        raise GroupNotComplete(
            f"data-parallel group: rank {rank} of {world} waited {timeout_seconds:g} s at {address} for the "
            "other ranks. Check that every rank of the role runs and reaches that address."
        ) from error
    return GlooGroup(rank, world, timeout_seconds, store)


class GlooGroup(DataParallelGroup):
    """Several processes, host memory, Gloo."""

    def __init__(self, rank: int, world: int, timeout_seconds: float, store: TCPStore) -> None:
        self._store = store
        self.rank = rank
        self.world = world
        self._timeout_seconds = timeout_seconds

    def add_up(self, values: torch.Tensor, what: str) -> None:
        """One all-reduce over `values`."""
        try:
            distributed.all_reduce(values)
        except RuntimeError as error:
            raise GroupBroken(
                f"data-parallel group: rank {self.rank} of {self.world} could not add up {what}: another rank "
                f"is gone or did not answer within {self._timeout_seconds:g} s ({error})."
            ) from error

    def leave(self) -> None:
        """A word at the rendezvous, which rank 0 keeps."""
        self._store.set(_LEFT, "1")

    def is_left(self) -> bool:
        """One request to rank 0."""
        try:
            return bool(self._store.check([_LEFT]))
        except RuntimeError:  # the rendezvous went with its host
            return True

    def close(self) -> None:
        """Leaves; the others' next sum fails."""
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _connect(address: str, timeout: timedelta) -> TCPStore:
    host, _, port = address.rpartition(":")
    return TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timeout)
