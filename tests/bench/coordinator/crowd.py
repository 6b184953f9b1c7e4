"""What a crowd of pods says to a coordinator, over raw sockets: launchers poll, ranks beat, receivers ask.

For `load`, in one event loop. Requests are made once and sent again as they are, and of an answer only its length is
read, so that the crowd costs a fraction of what the coordinator does.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from rljob_api.base import ApiModel
from rljob_api.names import Epoch, Lineage, Role, Stream, WeightVersion
from rljob_api.wire.epochs import PodOrder
from rljob_api.wire.identity import Incarnation, PodKey, RankKey, WeightId
from rljob_api.wire.launchers import LauncherHello, LauncherPoll, RankProcess
from rljob_api.wire.ranks import Beat, RankHello, RankState, RankWelcome
from rljob_api.wire.weights import PartRequest, WeightPart

OFFER_BYTES = 140_000_000_000
"""70 billion parameters of two bytes."""
FIRST = WeightId(lineage=Lineage(1), version=WeightVersion(0))
ASK_SECONDS = 0.5
"""How long a receiver's question is held open, as `rollout.engine_sync` has it."""
POLL_SECONDS = 1.0
"""How long a launcher's poll is held open."""
COUNTERS = ("steps", "samples", "tokens", "groups_put", "rows_claimed", "queue_wait_seconds", "weight_pulls")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the coordinator is."""

    host: str
    port: int
    token: str


@dataclass(slots=True)
class Tally:
    """What was answered since `clear`."""

    requests: int = 0
    refused: int = 0
    beat_seconds: list[float] = field(default_factory=list)

    def clear(self) -> None:
        """Begins again."""
        self.requests = self.refused = 0
        self.beat_seconds.clear()


class Line(asyncio.Protocol):
    """One keep-alive connection: one request at a time, answered in full."""

    def __init__(self, place: Place, tally: Tally) -> None:
        self._place = place
        self._tally = tally
        self._received = bytearray()
        self._answered: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    async def ask(self, request: bytes) -> bytes:
        """The body of the answer; empty where it was refused."""
        loop = asyncio.get_running_loop()
        if self._transport is None:
            await loop.create_connection(lambda: self, self._place.host, self._place.port)
        assert self._transport is not None
        self._answered = loop.create_future()
        self._transport.write(request)
        return await self._answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(exc or ConnectionResetError("the coordinator closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = bytes(self._received[:head_end]).lower()
        length = int(head.rpartition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(self._received) < head_end + 4 + length:
            return
        body = bytes(self._received[head_end + 4 :])
        self._received.clear()
        self._tally.requests += 1
        if head[9:12] != b"200":
            self._tally.refused += 1
            body = b""
        assert self._answered is not None
        self._answered.set_result(body)


def request(place: Place, method: str, path: str, model: ApiModel | None = None) -> bytes:
    """As the clients of the job write it."""
    body = b"" if model is None else model.model_dump_json().encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {place.host}\r\nX-RLJob-Token: {place.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def pods(ranks: int) -> list[PodKey]:
    """One rank each, which makes the most polls: half of them train, half of them generate."""
    half = ranks // 2
    training = [PodKey(role=Role.ACTOR, replica=replica) for replica in range(ranks - half)]
    return training + [PodKey(role=Role.ROLLOUT, replica=replica) for replica in range(half)]


def requests_due(ranks: int, beat_interval: float) -> float:
    """Requests a second of a crowd that is answered in time."""
    return ranks / beat_interval + ranks / POLL_SECONDS + ranks // 2 / ASK_SECONDS


def pod_uid(pod: PodKey) -> str:
    """The platform's name of a pod."""
    return f"uid-{pod}"


class Member:
    """One pod: its launcher, its rank and, where it generates, its receiver of weights."""

    def __init__(self, place: Place, tally: Tally, pod: PodKey) -> None:
        self._place = place
        self._tally = tally
        self._pod = pod
        self._launcher = secrets.token_hex(6)
        key = RankKey(role=pod.role, replica=pod.replica)
        self._incarnation = Incarnation(key=key, epoch=Epoch(1), generation=0, id=secrets.token_hex(6))
        self._rank = self._line()
        self.beat_interval = 0.0

    async def begin(self) -> None:
        """Launcher and rank are registered, and the rank is Ready."""
        hello = LauncherHello(pod=self._pod, pod_uid=pod_uid(self._pod), launcher=self._launcher, pid=1)
        await self._must(self._rank, request(self._place, "POST", "/v1/launchers", hello))
        rank = RankHello(incarnation=self._incarnation, pid=2, launcher=self._launcher)
        welcome = await self._must(self._rank, request(self._place, "POST", "/v1/ranks", rank))
        self.beat_interval = RankWelcome.model_validate_json(welcome).beat_interval_seconds
        await self._must(self._rank, self._beat())

    async def publish(self, chunk_bytes: int) -> None:
        """Offers version 0, as large as a 70B model."""
        part = WeightPart(
            stream=Stream.POLICY,
            id=FIRST,
            index=0,
            count=1,
            layout=secrets.token_hex(16),
            num_bytes=OFFER_BYTES,
            chunk_bytes=chunk_bytes,
            digest=secrets.token_hex(16),
            address="127.0.0.1:9",
        )
        publish = PartRequest(incarnation=self._incarnation, part=part)
        await self._must(self._rank, request(self._place, "POST", "/v1/weights/parts", publish))

    async def receive(self) -> None:
        """Reads the newest offer once, as a receiver that begins."""
        if self._pod.role is Role.ROLLOUT:
            await self._must(self._rank, request(self._place, "GET", "/v1/weights/Policy"))

    def loops(self, beat_interval: float) -> list[asyncio.Task[None]]:
        """What the pod does from then on, until it is cancelled."""
        held = f"lineage={FIRST.lineage}&version={FIRST.version}&wait={ASK_SECONDS}"
        asks = request(self._place, "GET", f"/v1/weights/Policy?{held}")
        running = [self._beats(beat_interval), repeat(self._line(), self._poll())]
        if self._pod.role is Role.ROLLOUT:
            running.append(repeat(self._line(), asks))
        return [asyncio.create_task(one) for one in running]

    async def _beats(self, interval: float) -> None:
        loop, beat = asyncio.get_running_loop(), self._beat()
        await asyncio.sleep(random.uniform(0, interval))
        due = loop.time()
        while True:
            began = loop.time()
            await self._rank.ask(beat)
            self._tally.beat_seconds.append(loop.time() - began)
            due = max(due + interval, loop.time())
            await asyncio.sleep(due - loop.time())

    def _beat(self) -> bytes:
        generates = self._pod.role is Role.ROLLOUT
        beat = Beat(
            incarnation=self._incarnation,
            state=RankState.READY,
            waiting=None if generates else "rows of train_7",
            tickets=[1, 2, 3, 4] if generates else [],
            holds=FIRST,
            counters=dict.fromkeys(COUNTERS, 1234.5),
        )
        return request(self._place, "POST", "/v1/ranks/beat", beat)

    def _poll(self) -> bytes:
        order = PodOrder(pod=self._pod, epoch=Epoch(1), pod_uid=pod_uid(self._pod))
        incarnation = self._incarnation
        process = RankProcess(rank=0, pid=2, incarnation=incarnation.id, epoch=incarnation.epoch, generation=0)
        poll = LauncherPoll(carried=order, ranks=[process], wait_seconds=POLL_SECONDS)
        return request(self._place, "POST", f"/v1/launchers/{self._launcher}/poll", poll)

    def _line(self) -> Line:
        return Line(self._place, self._tally)

    async def _must(self, line: Line, message: bytes) -> bytes:
        answer = await line.ask(message)
        if not answer:
            raise SystemExit(f"The coordinator refused {message[:200].decode(errors='replace')}")
        return answer


async def repeat(line: Line, message: bytes) -> None:
    """Asks again as soon as there is an answer."""
    while True:
        await line.ask(message)


async def every(seconds: float, line: Line, message: Callable[[], bytes]) -> None:
    """Asks at fixed times."""
    while True:
        await line.ask(message())
        await asyncio.sleep(seconds)
