"""One storage unit: a Redis that holds chunks and nothing that must survive it.

For `storage` (bulk) and for the coordinator (marks, sweeping, memory); imports no torch. A unit is known by the
generation that the coordinator marked it with: an empty one that came back has no mark. A connection does not survive
the server, so the generation read on it is true of every command on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

from rljob_workers.transfer_queue.errors import StorageUnreachable
from rljob_workers.transfer_queue.resp import (
    RETRY_SECONDS,
    BrokenReply,
    Clock,
    ErrorReply,
    RespConnection,
    ServerAddress,
    Sleep,
)
from rljob_workers.transfer_queue.types import QueueTiming

GENERATION_KEY = b"rljob:generation"
"""Has no epoch in front, so that no sweep of chunks meets it."""
_RAISE_MARK = b"""
local found = tonumber(redis.call('GET', KEYS[1]) or '-1')
if found < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
return redis.call('GET', KEYS[1])
"""
_KEYS_PER_COMMAND = 512
_USE = (b"used_memory", b"maxmemory", b"total_net_input_bytes", b"total_net_output_bytes")
"""As INFO names them."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class UnitFigures:
    """What a storage unit reports of itself."""

    used_bytes: int
    limit_bytes: int
    """0: none."""
    received_bytes: int
    """On its connections, since it was started."""
    sent_bytes: int
    keys: int
    """Chunks and the mark."""


class StorageUnit:
    """A connection that reconnects after it breaks. One thread at a time."""

    def __init__(
        self,
        index: int,
        url: str,
        *,
        timing: QueueTiming = QueueTiming(),
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        self.index = index
        self.address = ServerAddress.parse(url)
        self._silence_seconds = timing.unit_silence_seconds
        self._clock = clock
        self._sleep = sleep
        self._connection: RespConnection | None = None
        self._generation: int | None = None

    def __str__(self) -> str:
        return f"storage unit {self.index} ({self.address})"

    def close(self) -> None:
        """May be called twice; the next exchange connects again."""
        connection, self._connection, self._generation = self._connection, None, None
        if connection is not None:
            connection.close()

    def exchange(
        self, talk: Callable[[RespConnection, float, *Ts], T], *arguments: *Ts, deadline: float, waiting: str
    ) -> T:
        """Calls `talk(connection, deadline, *arguments)`, again on a new connection when one breaks, so perhaps twice.

        Any exception closes the connection, since replies may be left on it. Raises StorageUnreachable at the deadline,
        or when the unit is silent or away for too long: a long deadline is for many bytes, not for waiting. `waiting`
        names who waits for what, e.g. `actor-0.0 waits for rows of train_12`.
        """
        began, away_since = self._clock(), None
        while True:
            try:
                return talk(self._connected(deadline), deadline, *arguments)
            except ErrorReply as error:
                self.close()
                raise StorageUnreachable(f"TransferQueue: {self} refused: {error}; {waiting}.") from error
            except TimeoutError as error:
                self.close()
                raise self._unreachable(began, waiting, "has not answered") from error
            except (OSError, BrokenReply) as error:
                self.close()
                away_since = self._clock() if away_since is None else away_since
                if self._clock() + RETRY_SECONDS >= min(deadline, away_since + self._silence_seconds):
                    raise self._unreachable(began, waiting, "cannot be reached") from error
                self._sleep(RETRY_SECONDS)
            except BaseException:
                self.close()
                raise

    def marked_generation(self, connection: RespConnection, deadline: float) -> int:
        """The generation of the server behind `connection` (inside an exchange); waits until it is marked."""
        while self._generation is None:
            self._generation = _read_generation(connection, deadline)
            if self._generation is not None:
                break
            if self._clock() + RETRY_SECONDS >= deadline:
                raise TimeoutError("the unit has no generation mark")
            self._sleep(RETRY_SECONDS)
        return self._generation

    def generation(self, *, deadline: float) -> int | None:
        """The mark as it is now; None on a unit that lost it (or never had one)."""
        return self.exchange(_read_generation, deadline=deadline, waiting="its generation mark was asked for")

    def mark(self, generation: int, *, deadline: float) -> int:
        """Marks an unmarked unit; returns the generation in force, which is an older one if it was marked already."""
        return self.exchange(_mark, generation, deadline=deadline, waiting="its generation mark was asked for")

    def raise_mark(self, generation: int, *, deadline: float) -> int:
        """Marks the unit unless its mark is as high or higher; returns the generation in force.

        A queue admin that was replaced may come late: the highest mark stands, not the last one.
        """
        return self.exchange(_raise_mark, generation, deadline=deadline, waiting="its generation mark was set")

    def delete(self, keys: Sequence[str], *, deadline: float) -> int:
        """Deletes chunks; returns how many there were. Keys that are gone already do not matter."""
        return self.exchange(_delete, keys, deadline=deadline, waiting=f"{len(keys)} chunks were to be deleted")

    def present(self, keys: Sequence[str], *, deadline: float) -> list[str]:
        """Those of `keys` that are there."""
        return self.exchange(_present, keys, deadline=deadline, waiting=f"{len(keys)} chunks were to be looked for")

    def scan(self, *, deadline: Callable[[], float]) -> Iterator[list[str]]:
        """Pages of the keys of all chunks; a key that comes or goes meanwhile may be on a page or not, or on two.

        `deadline` gives that of the next page: their number is unknown.
        """
        cursor = b"0"
        while True:
            cursor, keys = self.exchange(_scan_page, cursor, deadline=deadline(), waiting="a sweep asked for its keys")
            yield keys
            if cursor == b"0":
                return

    def figures(self, *, deadline: float) -> UnitFigures:
        """What the unit holds, uses and may use, and what has passed through it."""
        return self.exchange(_read_figures, deadline=deadline, waiting="its memory figures were asked for")

    def _connected(self, deadline: float) -> RespConnection:
        if self._connection is None:
            self._connection = RespConnection(
                self.address, deadline=deadline, silence_seconds=self._silence_seconds, clock=self._clock
            )
        return self._connection

    def _unreachable(self, began: float, waiting: str, trouble: str) -> StorageUnreachable:
        seconds = self._clock() - began
        return StorageUnreachable(f"TransferQueue: {self} {trouble} for {seconds:.1f} s; {waiting}. Check its process.")


def _read_generation(connection: RespConnection, deadline: float) -> int | None:
    return _generation_of(connection.call(b"GET", GENERATION_KEY, deadline=deadline))


def _generation_of(reply: object) -> int | None:
    if reply is None:
        return None
    if not isinstance(reply, bytes) or not reply.isdigit():
        raise BrokenReply(f"the generation mark is {str(reply)[:40]}")
    return int(reply)


def _mark(connection: RespConnection, deadline: float, generation: int) -> int:
    connection.call(b"SET", GENERATION_KEY, b"%d" % generation, b"NX", deadline=deadline)
    found = _read_generation(connection, deadline)
    return generation if found is None else found


def _raise_mark(connection: RespConnection, deadline: float, generation: int) -> int:
    reply = connection.call(b"EVAL", _RAISE_MARK, b"1", GENERATION_KEY, b"%d" % generation, deadline=deadline)
    found = _generation_of(reply)
    return generation if found is None else found


def _delete(connection: RespConnection, deadline: float, keys: Sequence[str]) -> int:
    num_deleted = 0
    for page in _pages(keys):
        num_deleted += _integer(connection.call(b"UNLINK", *map(_encoded, page), deadline=deadline))
    return num_deleted


def _present(connection: RespConnection, deadline: float, keys: Sequence[str]) -> list[str]:
    found: list[str] = []
    for page in _pages(keys):
        for key in page:
            connection.command(b"EXISTS", _encoded(key))
        found += [key for key in page if _integer(connection.read(deadline))]
    return found


def _pages(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(keys), _KEYS_PER_COMMAND):
        yield keys[first : first + _KEYS_PER_COMMAND]


def _read_figures(connection: RespConnection, deadline: float) -> UnitFigures:
    connection.command(b"INFO", b"memory", b"stats")
    connection.command(b"DBSIZE")
    info, keys = connection.read(deadline), connection.read(deadline)
    lines = info.splitlines() if isinstance(info, bytes) else []
    figures = dict(line.split(b":", 1) for line in lines if b":" in line)
    found = [figures.get(name, b"") for name in _USE]
    if not all(figure.isdigit() for figure in found):
        what = ", ".join(f"{name.decode()} {figure[:40]!r}" for name, figure in zip(_USE, found, strict=True))
        raise BrokenReply(f"the memory figures are {what}")
    used, limit, received, sent = map(int, found)
    return UnitFigures(used, limit, received, sent, _integer(keys))


def _scan_page(connection: RespConnection, deadline: float, cursor: bytes) -> tuple[bytes, list[str]]:
    """Where the next page begins, and the keys of this one."""
    count = b"%d" % _KEYS_PER_COMMAND
    reply = connection.call(b"SCAN", cursor, b"MATCH", b"*:*:*", b"COUNT", count, deadline=deadline)
    match reply:
        case [bytes() as following, list() as keys] if following.isdigit():
            return following, [_decoded(key) for key in keys if isinstance(key, bytes)]
        case _:
            raise BrokenReply(f"a page of keys is {str(reply)[:40]}")


def _decoded(key: bytes) -> str:
    # A key that is not of the queue may be no text: it is swept like any other that nothing names.
    return key.decode(errors="surrogateescape")


def _encoded(key: str) -> bytes:
    return key.encode(errors="surrogateescape")


def _integer(reply: object) -> int:
    if not isinstance(reply, int):
        raise BrokenReply(f"{str(reply)[:40]} is no number")
    return reply
