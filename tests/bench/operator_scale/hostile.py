"""A coordinator that wants the operator no good, in each way that HTTP and JSON offer. The Host header says which way.

`python -m tests.bench.operator_scale.hostile ADDRESS PORT`; `GET /told` says, by way, how often it was asked and
how many bytes were taken.

Raw bytes on real sockets: a library would not send most of this. It counts what others have taken of it.
"""

import asyncio
import gzip
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache

from rljob_api.wire.epochs import DesiredState, EpochRequest
from rljob_api.wire.observation import CoordinatorEvent, EventKind, EventPage
from tests.bench.operator_scale.pretended_coordinator import PretendedCoordinator

GIGABYTE = 1 << 30
PIECE = b" " * (1 << 16)
DRIP_SECONDS = 0.2
MOST_SECONDS = 120.0
"""A question that is still open then is given up."""

Answer = Callable[[asyncio.StreamWriter, str, PretendedCoordinator], Awaitable[None]]


async def _sized(writer: asyncio.StreamWriter, _path: str, _job: PretendedCoordinator) -> None:
    """A gigabyte, announced."""
    await _endless(writer, _head(f"Content-Length: {GIGABYTE}"), PIECE)


async def _chunked(writer: asyncio.StreamWriter, _path: str, _job: PretendedCoordinator) -> None:
    """A gigabyte, piece by piece."""
    piece = b"%x\r\n%b\r\n" % (len(PIECE), PIECE)
    await _endless(writer, _head("Transfer-Encoding: chunked"), piece)


async def _extended(writer: asyncio.StreamWriter, _path: str, _job: PretendedCoordinator) -> None:
    """Chunks of a byte with extensions of kilobytes."""
    await _endless(writer, _head("Transfer-Encoding: chunked"), b"1;" + b"x" * 8000 + b"\r\n \r\n")


async def _interim(writer: asyncio.StreamWriter, _path: str, _job: PretendedCoordinator) -> None:
    """An answer is always about to come."""
    await _endless(writer, b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


async def _pipelined(writer: asyncio.StreamWriter, _path: str, _job: PretendedCoordinator) -> None:
    """Answers to what no one has asked."""
    await _endless(writer, b"", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" * 1000)


async def _headers(writer: asyncio.StreamWriter, _path: str, _job: PretendedCoordinator) -> None:
    """Headers without end."""
    await _endless(writer, b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"a" * 4000 + b"\r\n")


async def _packed(writer: asyncio.StreamWriter, _path: str, _job: PretendedCoordinator) -> None:
    """A hundred times what is sent."""
    body = _bomb()
    await _send(writer, _head("Content-Encoding: gzip", f"Content-Length: {len(body)}") + body)


async def _elsewhere(writer: asyncio.StreamWriter, _path: str, _job: PretendedCoordinator) -> None:
    """Another shall be asked: the API server, with whatever the operator may."""
    target = "https://kubernetes.default.svc/api/v1/secrets"
    await _send(writer, f"HTTP/1.1 307 Moved\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode())


async def _dripping(writer: asyncio.StreamWriter, _path: str, _job: PretendedCoordinator) -> None:
    """A byte now and then."""
    await _send(writer, _head(f"Content-Length: {GIGABYTE}"))
    while True:
        await _send(writer, b" ")
        await asyncio.sleep(DRIP_SECONDS)


async def _many_wrong(writer: asyncio.StreamWriter, path: str, job: PretendedCoordinator) -> None:
    """A hundred thousand entries that are none."""
    await _with_status(writer, path, job, '"failures":[]', '"failures":[' + ",".join(["{}"] * 100_000) + "]")


async def _many_wrong_rows(writer: asyncio.StreamWriter, path: str, job: PretendedCoordinator) -> None:
    """The same, in an object."""
    rows = ",".join(f'"{number}":"x"' for number in range(60_000))
    await _with_status(writer, path, job, '"rowsReady":{}', '"rowsReady":{' + rows + "}")


async def _deep(writer: asyncio.StreamWriter, path: str, job: PretendedCoordinator) -> None:
    """Brackets, in a field that no one knows: it is skipped."""
    await _with_status(writer, path, job, '"failures":[]', '"failures":[],"more":' + "[" * 200_000 + "]" * 200_000)


async def _no_number(writer: asyncio.StreamWriter, path: str, job: PretendedCoordinator) -> None:
    """A time that is none: whatever is compared with it is false."""
    await _with_status(writer, path, job, '"progressAgeSeconds":0.0', '"progressAgeSeconds":NaN')


async def _long_text(writer: asyncio.StreamWriter, path: str, job: PretendedCoordinator) -> None:
    """A name of half a megabyte."""
    await _with_status(writer, path, job, '"decisionId":"', '"decisionId":"' + "x" * 500_000)


async def _reporting(writer: asyncio.StreamWriter, path: str, job: PretendedCoordinator) -> None:
    """Well but for its events: there are always some, each an alarm."""
    if path.startswith("/v1/events"):
        after = int(path.partition("after=")[2].partition("&")[0])
        events = [
            CoordinatorEvent(id=after + n + 1, kind=EventKind.FAILURE_REPORTED, at=0.0, epoch=1, message="again")
            for n in range(500)
        ]
        await _json(writer, EventPage(events=events, oldest=0).model_dump_json())
    else:
        await _json(writer, job.status().model_dump_json())


@cache
def _bomb() -> bytes:
    return gzip.compress(bytes(GIGABYTE // 16), 1)


WAYS: dict[str, Answer] = {
    "sized": _sized,
    "chunked": _chunked,
    "extended": _extended,
    "interim": _interim,
    "pipelined": _pipelined,
    "headers": _headers,
    "packed": _packed,
    "elsewhere": _elsewhere,
    "dripping": _dripping,
    "many-wrong": _many_wrong,
    "many-wrong-rows": _many_wrong_rows,
    "deep": _deep,
    "no-number": _no_number,
    "long-words": _long_text,
    "telling": _reporting,
}


class Hostile:
    """One server for all ways; `way.anything` as the Host, or `load-way...`, chooses one."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        """Bytes that were taken from this process, by way."""
        self._jobs: dict[str, PretendedCoordinator] = {}
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, address: str, port: int) -> int:
        """The port that it listens on."""
        _bomb()  # it takes a moment
        self._server = await asyncio.start_server(self._serve, address, port, limit=1 << 20)
        listens_at: int = self._server.sockets[0].getsockname()[1]
        return listens_at

    async def stop(self) -> None:
        """Closes all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._answer(reader, writer)
        finally:
            self._serving.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError, asyncio.LimitOverrunError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = _header(head, "content-length")
                body = await reader.readexactly(int(length)) if length else b""
                host, path = _header(head, "host"), head.split(" ", 2)[1]
                if path == "/told":
                    await _json(writer, json.dumps({way: [self.asked[way], self.sent[way]] for way in WAYS}))
                    continue
                way = next(name for name in sorted(WAYS, key=len, reverse=True) if name in host)
                job = self._jobs.setdefault(host, PretendedCoordinator())
                self.asked[way] += 1
                counted = _Counted(writer, self.sent, way)
                method = head.partition(" ")[0]
                async with asyncio.timeout(MOST_SECONDS):
                    if method == "GET":
                        await WAYS[way](counted, path, job)  # type: ignore[arg-type]
                    else:
                        await _taken(counted, path, job, body)  # type: ignore[arg-type]


class _Counted:
    """As much of a writer as is used here."""

    def __init__(self, writer: asyncio.StreamWriter, sent: Counter[str], way: str) -> None:
        self._writer = writer
        self._sent = sent
        self._way = way

    def write(self, data: bytes) -> None:
        self._writer.write(data)
        self._sent[self._way] += len(data)

    async def drain(self) -> None:
        await self._writer.drain()


async def _taken(writer: asyncio.StreamWriter, path: str, job: PretendedCoordinator, body: bytes) -> None:
    """Orders are carried out by those whose status is read."""
    if path == "/v1/epoch":
        await _json(writer, job.raise_epoch(EpochRequest.model_validate_json(body)).model_dump_json())
        return
    if path == "/v1/desired":
        job.order(DesiredState.model_validate_json(body))
    await _json(writer, "null")


async def _with_status(
    writer: asyncio.StreamWriter, path: str, job: PretendedCoordinator, before: str, after: str
) -> None:
    if path.startswith("/v1/events"):
        await asyncio.sleep(MOST_SECONDS)
    status = job.status().model_copy(update={"failures": []})
    status = status.model_copy(update={"queue": status.queue.model_copy(update={"rows_ready": {}})})
    text = status.model_dump_json()
    assert before in text, f"a status says nothing of {before}"
    await _json(writer, text.replace(before, after, 1))


async def _json(writer: asyncio.StreamWriter, text: str) -> None:
    body = text.encode()
    await _send(writer, _head("Content-Type: application/json", f"Content-Length: {len(body)}") + body)


async def _endless(writer: asyncio.StreamWriter, head: bytes, piece: bytes) -> None:
    await _send(writer, head)
    for _ in range(GIGABYTE // len(piece)):
        await _send(writer, piece)


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


def _head(*headers: str) -> bytes:
    return ("\r\n".join(["HTTP/1.1 200 OK", *headers]) + "\r\n\r\n").encode()


async def main(address: str, port: int) -> None:
    await Hostile().start(address, port)
    await asyncio.Event().wait()


def _header(head: str, name: str) -> str:
    found = [line.partition(":")[2].strip() for line in head.split("\r\n") if line.lower().startswith(f"{name}:")]
    return found[0] if found else ""


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
