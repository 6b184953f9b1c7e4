"""Pulls a weight from its sources: chunk by chunk, each verified, resumed at another source when one fails.

Used by the receiver, in its thread. A file appears under its name only when every chunk of it is right.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from rljob_api.wire.weights import WeightOffer
from rljob_workers.dcs.blob import checksum, write_whole
from rljob_workers.dcs.errors import CorruptWeights, WeightTimeout
from rljob_workers.dcs.weights.serving import ChunkAnswer, ChunkRequest, receive_message, send_message

STALL_SECONDS = 5.0
"""A source that sends nothing for so long is left for another one."""
RETRY_SECONDS = 0.05
"""Between two rounds over all sources."""


@dataclass(slots=True)
class _Progress:
    """How far a blob has come; chunks [0, next_chunk) are there and right."""

    next_chunk: int = 0
    failures: list[Exception] = field(default_factory=list)
    last_failure: str = "no source was offered"


@dataclass(frozen=True, slots=True)
class PullTerms:
    """What a pull may take."""

    token: str
    deadline: float
    """Monotonic seconds."""
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    pulse: Callable[[], None]


def pull(offer: WeightOffer, path: Path, terms: PullTerms, rounds: Iterable[list[str]]) -> bool:
    """Pulls a weight into `path`; False when `rounds`, the addresses to try in each round, end before it is whole.

    Raises WeightTimeout at the deadline, CorruptWeights when only wrong bytes were seen until then.
    """
    partial = path.with_suffix(".partial")
    progress = _Progress()
    try:
        with partial.open("wb", buffering=0) as file:
            whole = _pull_in_rounds(offer, file, progress, terms, rounds)
        if whole:
            partial.rename(path)
        return whole
    finally:
        partial.unlink(missing_ok=True)


def _pull_in_rounds(
    offer: WeightOffer, file: FileIO, progress: _Progress, terms: PullTerms, rounds: Iterable[list[str]]
) -> bool:
    for addresses in rounds:
        for address in addresses:
            try:
                _pull_from(address, offer, file, progress, terms)
                return True
            except (OSError, EOFError, ValueError) as error:
                if progress.failures and terms.clock() >= terms.deadline:
                    break  # a try cut short by our own deadline says less than what failed before it
                progress.failures.append(error)
                progress.last_failure = f"{address}: {error}"
        _refuse_late(offer, progress, terms)
    return False


class _WrongBytesError(ValueError):
    """A chunk that does not match its checksum."""


def _refuse_late(offer: WeightOffer, progress: _Progress, terms: PullTerms) -> None:
    """Between two rounds: time over is an error with a name, else a short pause."""
    terms.pulse()
    if terms.clock() + RETRY_SECONDS < terms.deadline:
        terms.sleep(RETRY_SECONDS)
        return
    failures = progress.failures
    only_wrong_bytes = failures and all(isinstance(failure, _WrongBytesError) for failure in failures)
    kind = CorruptWeights if only_wrong_bytes else WeightTimeout
    raise kind(
        f"{offer.stream.value} {offer.id}: {progress.next_chunk} of {len(offer.checksums)} chunks came until the "
        f"deadline; sources failed {len(failures)} times, last: {progress.last_failure}."
    )


def _pull_from(address: str, offer: WeightOffer, file: FileIO, progress: _Progress, terms: PullTerms) -> None:
    """Pulls what is missing from one source; what came right before it failed stays."""
    host, _, port = address.rpartition(":")
    patience = max(0.01, min(STALL_SECONDS, terms.deadline - terms.clock()))
    with socket.create_connection((host, int(port)), patience) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _ask(connection, offer, progress, terms)
        # One buffer for all chunks: received, checked and written while it is in the cache.
        buffer = memoryview(bytearray(min(offer.chunk_bytes, offer.num_bytes)))
        while progress.next_chunk < len(offer.checksums):
            start = progress.next_chunk * offer.chunk_bytes
            chunk = buffer[: min(offer.chunk_bytes, offer.num_bytes - start)]
            _receive(connection, chunk, terms)
            if checksum(chunk) != offer.checksums[progress.next_chunk]:
                raise _WrongBytesError(f"chunk {progress.next_chunk} does not match its checksum")
            file.seek(start)
            write_whole(file.fileno(), chunk)
            progress.next_chunk += 1
            terms.pulse()


def _ask(connection: socket.socket, offer: WeightOffer, progress: _Progress, terms: PullTerms) -> None:
    """Asks for all chunks that are missing; raises for a refusal."""
    count = len(offer.checksums) - progress.next_chunk
    request = ChunkRequest(token=terms.token, stream=offer.stream, id=offer.id, first=progress.next_chunk, count=count)
    send_message(connection, request)
    answer = ChunkAnswer.model_validate_json(receive_message(connection))
    if answer.refusal is not None:
        raise ValueError(answer.refusal)


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
