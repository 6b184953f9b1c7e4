"""Transfer of the parts of a weight over TCP: a server of chunks and the pull that verifies each of them.

Publishers and receivers serve (a thread per request, sendfile); receivers pull, in their own thread, and resume at
another source when one fails. A request is a length (4 bytes, big-endian) and JSON `ChunkRequest`; the answer is a
length and JSON `ChunkAnswer`, the checksums of all chunks of the part, the requested bytes. A file gets its name only
after every chunk is verified.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path

from rljob_api.base import WireModel
from rljob_api.machine.room import is_no_room
from rljob_api.names import Stream
from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import OfferedPart
from rljob_workers.dcs.errors import CorruptWeights, WeightTimeout
from rljob_workers.dcs.tensor_bytes import CHECKSUM_BYTES, StagedPart, checksum, digest_of, write_whole
from rljob_workers.dcs.weights.chunk_requests import LENGTH, AwaitedRequests, checked_length
from rljob_workers.sockets import is_readable, is_writable

IDLE_SECONDS = 60.0
"""A receiver that neither asks nor reads for so long is gone."""


class ChunkRequest(WireModel):
    """Chunks [first, first + count) of a part of a weight."""

    token: str
    stream: Stream
    id: WeightId
    part: int
    first: int
    count: int


class ChunkAnswer(WireModel):
    """What follows: the checksums and so many bytes, or nothing and a refusal."""

    num_bytes: int
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class _Served:
    id: WeightId
    parts: Mapping[int, StagedPart]


class ChunkServer:
    """Serves the parts at hand of the newest weight of each stream, in background threads."""

    def __init__(self, host: str, token: str) -> None:
        self._token = token.encode()
        self._lock = threading.Lock()
        self._weights: dict[Stream, _Served] = {}
        self._listener = socket.create_server((host, 0), family=_family_of(host), backlog=128)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="weight-server", daemon=True).start()

    def serve(self, stream: Stream, weight: WeightId, parts: Mapping[int, StagedPart]) -> None:
        """Offers parts of a weight, by index, and forgets the weight before it; transfers in progress go on."""
        with self._lock:
            before = self._weights.get(stream)
            self._weights[stream] = _Served(weight, parts)
        _close(before)

    def close(self) -> None:
        """Stops listening and forgets all weights."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            weights, self._weights = list(self._weights.values()), {}
        for weight in weights:
            _close(weight)

    def _accept(self) -> None:
        awaited = AwaitedRequests(self._listener)
        with contextlib.suppress(OSError, ValueError):  # the listener is closed, and has no number any more
            while True:
                for whole in awaited.turn():
                    arguments = (whole.connection, whole.body)
                    threading.Thread(target=self._converse, args=arguments, name="weight-stream", daemon=True).start()
        awaited.close()

    def _converse(self, connection: socket.socket, body: bytes) -> None:
        """Answers requests until the receiver is done or gone; whatever it did concerns no one else."""
        with connection, contextlib.suppress(OSError, ValueError, EOFError):
            connection.settimeout(IDLE_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                self._answer(connection, ChunkRequest.model_validate_json(body))
                body = receive_message(connection)

    def _answer(self, connection: socket.socket, request: ChunkRequest) -> None:
        if not hmac.compare_digest(request.token.encode(), self._token):
            send_message(connection, ChunkAnswer(num_bytes=0, refusal="wrong token"))
            raise EOFError("wrong token")
        part = self._take(request)
        if part is None:
            refusal = f"part {request.part} of {request.id} is not served here any more"
            send_message(connection, ChunkAnswer(num_bytes=0, refusal=refusal))
            return
        try:
            start = request.first * part.chunk_bytes
            end = min(part.num_bytes, start + request.count * part.chunk_bytes)
            send_message(connection, ChunkAnswer(num_bytes=max(0, end - start)))
            connection.sendall(part.checksums)
            _send_range(connection, part.descriptor, start, end)
        finally:
            os.close(part.descriptor)

    def _take(self, request: ChunkRequest) -> StagedPart | None:
        """The asked part behind a descriptor of its own, so that a newer weight may replace it meanwhile."""
        with self._lock:
            weight = self._weights.get(request.stream)
            part = None if weight is None or weight.id != request.id else weight.parts.get(request.part)
            return None if part is None else replace(part, descriptor=os.dup(part.descriptor))


def _close(weight: _Served | None) -> None:
    for part in () if weight is None else weight.parts.values():
        os.close(part.descriptor)


def _family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def send_message(connection: socket.socket, message: WireModel) -> None:
    """A length and JSON."""
    body = message.model_dump_json().encode()
    connection.sendall(LENGTH.pack(len(body)) + body)


def receive_message(connection: socket.socket) -> bytes:
    """The JSON of one message; EOFError at the end, ValueError for one that is too long."""
    return receive_exactly(connection, checked_length(receive_exactly(connection, LENGTH.size)))


def receive_exactly(connection: socket.socket, length: int) -> bytes:
    """So many bytes; EOFError where the connection ends before."""
    data = bytearray()
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            raise EOFError("the connection was closed")
        data += piece
    return bytes(data)


def _send_range(connection: socket.socket, descriptor: int, start: int, end: int) -> None:
    """Sends bytes [start, end) of a file; socket.sendfile would need a file object with its own position."""
    while start < end:
        try:
            start += os.sendfile(connection.fileno(), descriptor, start, end - start)
        except BlockingIOError:
            _await_writable(connection)


def _await_writable(connection: socket.socket) -> None:
    if not is_writable(connection, IDLE_SECONDS):
        raise TimeoutError("the receiver does not read")


STALL_SECONDS = 5.0
"""A source that sends nothing for so long is left for another one."""


SILENT_PULSE_SECONDS = 1.0
"""Between two pulses while a source sends nothing. A rank that pulls from a stopped rank is not silent itself: without
these pulses it would be named as the one that hangs wherever the heartbeat's limit is near `STALL_SECONDS`."""


RETRY_SECONDS = 0.05
"""Between two rounds over all sources."""


@dataclass(slots=True)
class _Progress:
    """How far a part has come; chunks [0, next_chunk) are there and right."""

    num_chunks: int
    next_chunk: int = 0
    checksums: bytes = b""
    """Of all chunks, once a source has sent those that match the part's digest."""
    failures: list[Exception] = field(default_factory=list)
    last_failure: str = "no source was offered"


@dataclass(frozen=True, slots=True)
class WantedPart:
    """A part of a weight that is offered."""

    stream: Stream
    id: WeightId
    part: OfferedPart

    def __str__(self) -> str:
        return f"{self.stream.value} {self.id}, part {self.part.index}"


@dataclass(frozen=True, slots=True)
class PullTerms:
    """What a pull may take."""

    token: str
    deadline: float
    """By `clock`."""
    pulse: Callable[[], None]
    """Called between chunks, between rounds and while a source is silent; may raise."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def pull(wanted: WantedPart, path: Path, terms: PullTerms, rounds: Iterable[list[str]]) -> bytes | None:
    """Pulls a part into `path` and gives the checksums of its chunks.

    None when `rounds`, the addresses to try in each round, end before it is whole. Raises WeightTimeout at the
    deadline, CorruptWeights when only wrong bytes were seen until then.
    """
    partial = path.with_suffix(".partial")
    progress = _Progress(-(-wanted.part.num_bytes // wanted.part.chunk_bytes))
    try:
        with partial.open("wb", buffering=0) as file:
            whole = _pull_in_rounds(wanted, file, progress, terms, rounds)
        if whole:
            partial.rename(path)
        return progress.checksums if whole else None
    finally:
        partial.unlink(missing_ok=True)


def _pull_in_rounds(
    wanted: WantedPart, file: FileIO, progress: _Progress, terms: PullTerms, rounds: Iterable[list[str]]
) -> bool:
    for addresses in rounds:
        for address in addresses:
            try:
                _pull_from(address, wanted, file, progress, terms)
                return True
            except (OSError, EOFError, ValueError) as error:
                if is_no_room(error):
                    raise  # no other source has more of it
                if progress.failures and terms.clock() >= terms.deadline:
                    break  # a try cut short by our own deadline explains less than what failed before it
                progress.failures.append(error)
                progress.last_failure = f"{address}: {error}"
        _refuse_late(wanted, progress, terms)
    return False


class _WrongBytesError(ValueError):
    """Checksums that do not match the digest, or a chunk that does not match its checksum."""


def _refuse_late(wanted: WantedPart, progress: _Progress, terms: PullTerms) -> None:
    """Between two rounds: time over is an error with a name, else a short pause."""
    terms.pulse()
    if terms.clock() + RETRY_SECONDS < terms.deadline:
        terms.sleep(RETRY_SECONDS)
        return
    failures = progress.failures
    only_wrong_bytes = failures and all(isinstance(failure, _WrongBytesError) for failure in failures)
    kind = CorruptWeights if only_wrong_bytes else WeightTimeout
    raise kind(
        f"{wanted}: {progress.next_chunk} of {progress.num_chunks} chunks came until the "
        f"deadline; sources failed {len(failures)} times, last: {progress.last_failure}."
    )


def _pull_from(address: str, wanted: WantedPart, file: FileIO, progress: _Progress, terms: PullTerms) -> None:
    """Pulls what is missing from one source; what came right before it failed stays."""
    host, _, port = address.rpartition(":")
    patience = max(0.01, min(STALL_SECONDS, terms.deadline - terms.clock()))
    with socket.create_connection((host, int(port)), patience) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _ask(connection, wanted, progress, terms)
        # One buffer for all chunks: received, checked and written while it is in the cache.
        part, chunk_bytes = wanted.part, wanted.part.chunk_bytes
        buffer = memoryview(bytearray(min(chunk_bytes, part.num_bytes)))
        while progress.next_chunk < progress.num_chunks:
            number = progress.next_chunk
            start = number * chunk_bytes
            chunk = buffer[: min(chunk_bytes, part.num_bytes - start)]
            _receive(connection, chunk, terms)
            if checksum(chunk) != progress.checksums[number * CHECKSUM_BYTES : (number + 1) * CHECKSUM_BYTES]:
                raise _WrongBytesError(f"chunk {number} does not match its checksum")
            file.seek(start)
            write_whole(file.fileno(), chunk)
            progress.next_chunk += 1
            terms.pulse()


def _ask(connection: socket.socket, wanted: WantedPart, progress: _Progress, terms: PullTerms) -> None:
    """Asks for all chunks that are missing and takes the checksums of all; raises for a refusal."""
    first = progress.next_chunk
    request = ChunkRequest(
        token=terms.token,
        stream=wanted.stream,
        id=wanted.id,
        part=wanted.part.index,
        first=first,
        count=progress.num_chunks - first,
    )
    send_message(connection, request)
    _await_bytes(connection, terms)
    answer = ChunkAnswer.model_validate_json(receive_message(connection))
    if answer.refusal is not None:
        raise ValueError(answer.refusal)
    checksums = receive_exactly(connection, progress.num_chunks * CHECKSUM_BYTES)
    if digest_of(checksums) != wanted.part.digest:
        raise _WrongBytesError("the checksums do not match the digest that was told")
    progress.checksums = checksums


def _await_bytes(connection: socket.socket, terms: PullTerms) -> None:
    """Returns once there is something to read. TimeoutError at the deadline, or if the source stays silent."""
    begun = terms.clock()
    while True:
        if terms.clock() >= terms.deadline:
            raise TimeoutError("the deadline has passed")
        if is_readable(connection, SILENT_PULSE_SECONDS):
            return
        if terms.clock() - begun >= STALL_SECONDS:
            raise TimeoutError("timed out")
        terms.pulse()


def _receive(connection: socket.socket, target: memoryview, terms: PullTerms) -> None:
    received = 0
    while received < len(target):
        _await_bytes(connection, terms)
        count = connection.recv_into(target[received:])
        if count == 0:
            raise EOFError("the source closed the connection")
        received += count
