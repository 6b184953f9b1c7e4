"""Pulls a part of a weight from its sources: chunk by chunk, each verified, resumed at another source when one fails.

Used by the receiver, in its thread. A file appears under its name only when every chunk of it is right: the source
sends the checksums of all chunks, and they must be those whose digest was told with the part.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import OfferedPart, Stream
from rljob_workers.dcs.blob import CHECKSUM_BYTES, checksum, digest_of, write_whole
from rljob_workers.dcs.errors import CorruptWeights, WeightTimeout
from rljob_workers.dcs.weights.serving import (
    ChunkAnswer,
    ChunkRequest,
    receive_exactly,
    receive_message,
    send_message,
)

STALL_SECONDS = 5.0
"""A source that sends nothing for so long is left for another one."""
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
    """Monotonic seconds."""
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    pulse: Callable[[], None]


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
                if progress.failures and terms.clock() >= terms.deadline:
                    break  # a try cut short by our own deadline says less than what failed before it
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
    answer = ChunkAnswer.model_validate_json(receive_message(connection))
    if answer.refusal is not None:
        raise ValueError(answer.refusal)
    checksums = receive_exactly(connection, progress.num_chunks * CHECKSUM_BYTES)
    if digest_of(checksums) != wanted.part.digest:
        raise _WrongBytesError("the checksums do not match the digest that was told")
    progress.checksums = checksums


def _receive(connection: socket.socket, target: memoryview, terms: PullTerms) -> None:
    received = 0
    while received < len(target):
        if terms.clock() >= terms.deadline:
            raise TimeoutError("the deadline has passed")
        count = connection.recv_into(target[received:])
        if count == 0:
            raise EOFError("the source closed the connection")
        received += count


def monotonic_terms(token: str, seconds: float, pulse: Callable[[], None]) -> PullTerms:
    """Terms by the machine's clock."""
    return PullTerms(token, time.monotonic() + seconds, time.monotonic, time.sleep, pulse)
