"""Chunks over one connection: many written or read in one round trip, bytes straight from and into tensors.

For `storage` only, inside an exchange with one unit. Replies are taken in the order of the commands; an exception
leaves some behind, and the exchange closes the connection then.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from rljob_workers.transfer_queue.chunks import HEADER_BYTES, ChunkHeader, decode_header, verify_payload
from rljob_workers.transfer_queue.errors import CorruptChunk
from rljob_workers.transfer_queue.resp import ErrorReply, RespConnection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rljob_workers.transfer_queue.pieces import Piece
    from rljob_workers.transfer_queue.placement import ChunkRef
    from rljob_workers.transfer_queue.reads import ChunkRead

WINDOW_BYTES = 4 << 20
"""So much is under way while the next command goes out: enough to keep both sides at work, and more only fills the
server's buffers."""


def write_chunks(connection: RespConnection, refs: Mapping[Piece, ChunkRef], until: float) -> bool:
    """Stores every piece; False when the unit is out of memory. All replies are taken."""
    has_room = True
    under_way: deque[int] = deque()
    num_bytes = 0
    for piece, ref in refs.items():
        connection.command_gathered((b"SET", ref.key.encode()), (piece.header, *piece.payload))
        under_way.append(piece.num_bytes)
        num_bytes += piece.num_bytes
        if num_bytes < WINDOW_BYTES:
            continue
        connection.flush(until)
        while len(under_way) > 1 and num_bytes > WINDOW_BYTES:
            has_room = _confirm(connection, 1, until) and has_room
            num_bytes -= under_way.popleft()
    connection.flush(until)
    return _confirm(connection, len(under_way), until) and has_room


def _confirm(connection: RespConnection, pending: int, until: float) -> bool:
    has_room = True
    for _ in range(pending):
        try:
            connection.read(until)
        except ErrorReply as error:
            if not str(error).startswith("OOM"):
                raise
            has_room = False
    return has_room


def read_chunks(
    connection: RespConnection, reads: Sequence[ChunkRead], until: float, known: set[str]
) -> list[ChunkRef]:
    """Fills the targets of all reads; returns the chunks that are not there.

    `known`: keys of chunks whose header was seen, added to here. Chunks never change, so a part needs it only once.
    """
    missing: list[ChunkRef] = []
    asked: deque[tuple[ChunkRead, bool]] = deque()
    num_bytes = 0
    for read in reads:
        asked.append((read, _ask(connection, read, known)))
        num_bytes += read.wanted_bytes
        if num_bytes < WINDOW_BYTES:
            continue
        connection.flush(until)
        while len(asked) > 1 and num_bytes > WINDOW_BYTES:
            num_bytes -= asked[0][0].wanted_bytes
            missing += _take(connection, *asked.popleft(), until, known)
    connection.flush(until)
    for read, has_header in asked:
        missing += _take(connection, read, has_header, until, known)
    return missing


def _ask(connection: RespConnection, read: ChunkRead, known: set[str]) -> bool:
    """Whether a reply with the header alone comes before those of the parts."""
    key = read.chunk.key.encode()
    if read.whole:
        connection.command(b"GET", key)
        return False
    is_new = read.chunk.key not in known
    if is_new:
        connection.command(b"GETRANGE", key, b"0", b"%d" % (HEADER_BYTES - 1))
    for start, _, length in read.runs.tolist():
        first = HEADER_BYTES + start
        connection.command(b"GETRANGE", key, b"%d" % first, b"%d" % (first + length - 1))
    return is_new


def _take(
    connection: RespConnection, read: ChunkRead, has_header: bool, until: float, known: set[str]
) -> list[ChunkRef]:
    """The chunk if it is not there. Takes all replies of this read unless it raises."""
    try:
        if read.whole:
            return [] if _take_whole(connection, read, until) else [read.chunk]
        there = not has_header or _take_header_alone(connection, read, until, known)
        return [] if _take_parts(connection, read, until) and there else [read.chunk]
    except CorruptChunk as error:
        error.chunk = read.chunk
        raise


def _take_whole(connection: RespConnection, read: ChunkRead, until: float) -> bool:
    size = connection.begin_bulk(until)
    if size is None:
        return False
    if read.chunk.num_bytes and size != read.chunk.num_bytes:
        raise CorruptChunk(
            f"TransferQueue: chunk {read.chunk.key} of {read.chunk.field} has {size} bytes, the queue says"
            f" {read.chunk.num_bytes} bytes"
        )
    header = _take_header(connection, read.chunk, size, until)
    if header.num_bytes != size - HEADER_BYTES:
        raise CorruptChunk(
            f"TransferQueue: chunk {read.chunk.key} of {read.chunk.field} has {size} bytes, its header says"
            f" {header.num_bytes + HEADER_BYTES} bytes"
        )
    target = read.sole_target(header.num_bytes)
    payload = memoryview(bytearray(header.num_bytes)) if target is None else target
    connection.read_into(payload, until)
    verify_payload(header, payload)
    if target is None:
        _refuse_short(read, header)
        read.scatter(payload)
    connection.end_bulk(until)
    return True


def _take_header_alone(connection: RespConnection, read: ChunkRead, until: float, known: set[str]) -> bool:
    size = connection.begin_bulk(until)
    if size:
        _refuse_short(read, _take_header(connection, read.chunk, size, until))
        known.add(read.chunk.key)
    connection.end_bulk(until)
    return bool(size)


def _take_parts(connection: RespConnection, read: ChunkRead, until: float) -> bool:
    """Parts have no checksum of their own: it is only checked that every part is there."""
    there = True
    for _, place, length in read.runs.tolist():
        size = connection.begin_bulk(until)
        if size:
            if size != length:
                raise _too_short(read.chunk)
            connection.read_into(read.column[place : place + length], until)
        there = there and bool(size)
        connection.end_bulk(until)
    return there


def _refuse_short(read: ChunkRead, header: ChunkHeader) -> None:
    if int((read.runs[:, 0] + read.runs[:, 2]).max()) > header.num_bytes:
        raise _too_short(read.chunk)


def _take_header(connection: RespConnection, chunk: ChunkRef, size: int, until: float) -> ChunkHeader:
    data = bytearray(min(size, HEADER_BYTES))
    connection.read_into(memoryview(data), until)
    header = decode_header(data)
    dtype = str(header.dtype).removeprefix("torch.")
    if (dtype, header.inner_shape) != (chunk.dtype, chunk.inner_shape):
        raise CorruptChunk(
            f"TransferQueue: chunk {chunk.key} of {chunk.field} holds {dtype}{list(header.inner_shape)}, the queue says"
            f" {chunk.dtype}{list(chunk.inner_shape)}"
        )
    return header


def _too_short(chunk: ChunkRef) -> CorruptChunk:
    return CorruptChunk(f"TransferQueue: chunk {chunk.key} of {chunk.field} is shorter than the rows that lie in it")
