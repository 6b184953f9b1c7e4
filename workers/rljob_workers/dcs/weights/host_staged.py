"""The HostStaged transport: the trainer leaves a blob in host memory and goes on; receivers pull it.

Chosen in the factory of this package. Half a weight is never visible: the offer is made after the whole blob is staged,
a receiver's file appears after its last chunk is verified.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import PublishRequest, SourceRequest, Stream, WeightOffer
from rljob_workers.dcs.blob import stage_blob
from rljob_workers.dcs.channel import ChannelBroken, HttpChannel
from rljob_workers.dcs.client import ATTEMPT_SECONDS, CoordinatorClient
from rljob_workers.dcs.context import RankContext
from rljob_workers.dcs.session import RankSession
from rljob_workers.dcs.weights.base import StagedWeights, WeightPublisher, WeightReceiver
from rljob_workers.dcs.weights.pulling import monotonic_terms, pull
from rljob_workers.dcs.weights.serving import ChunkServer, ServedWeight

if TYPE_CHECKING:
    import torch

POLL_SECONDS = 0.5
"""One turn of the long poll: how long a receiver stays away from its pulse."""
KEPT_FILES = 2
"""The newest weight, and the one before it that an engine may still be loading."""


class HostStagedPublisher(WeightPublisher):
    """Stages, serves, offers."""

    def __init__(self, context: RankContext, session: RankSession) -> None:
        self._life = session.life
        self._chunk_bytes = context.job.spec.weight_sync.chunk_bytes
        self._client = CoordinatorClient(context.endpoints)
        self._server = ChunkServer(context.endpoints.address, context.endpoints.token)

    def publish(
        self, stream: Stream, weight: WeightId, tensors: Mapping[str, torch.Tensor], *, deadline: float
    ) -> None:
        """See the base. Returns after about one copy, one checksum and one request."""
        blob = stage_blob(f"{stream.value}-{weight}", tensors, self._chunk_bytes)
        self._server.serve(ServedWeight(stream, weight, blob.descriptor, blob.num_bytes, blob.chunk_bytes))
        offer = WeightOffer(
            stream=stream,
            id=weight,
            num_bytes=blob.num_bytes,
            chunk_bytes=blob.chunk_bytes,
            checksums=list(blob.checksums),
            sources=[self._server.address],
        )
        call_id = f"{self._life.incarnation}/publish/{stream.value}/{weight}"
        request = PublishRequest(life=self._life, offer=offer, call_id=call_id)
        self._client.call("POST", "/v1/weights", request, deadline=deadline)

    def close(self) -> None:
        """See the base."""
        self._server.close()
        self._client.close()


class HostStagedReceiver(WeightReceiver):
    """Waits, pulls, verifies, serves on."""

    def __init__(self, context: RankContext, session: RankSession) -> None:
        self._life = session.life
        self._token = context.endpoints.token
        self._timeout = float(context.job.spec.weight_sync.timeout_seconds)
        self._client = CoordinatorClient(context.endpoints)
        self._server = ChunkServer(context.endpoints.address, self._token)
        self._announcements = HttpChannel(context.endpoints.coordinator, context.endpoints.token)
        self._chance = random.Random(self._life.incarnation)
        self._folder = Path(context.endpoints.weights_dir) / f"{self._life.key}"
        # What an earlier life of this rank left may be read by the engine still: only its open file stays.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._staged: dict[Stream, list[Path]] = {stream: [] for stream in Stream}

    def await_newer(
        self,
        stream: Stream,
        than: WeightId | None,
        *,
        deadline: float,
        pulse: Callable[[], None] | None = None,
    ) -> StagedWeights | None:
        """See the base. A weight that is replaced while it is pulled is given up for the newer one."""
        beat = pulse or _no_pulse
        while True:
            offer = self._await_offer(stream, than, deadline, beat)
            if offer is None:
                return None
            staged = self._fetch(offer, beat)
            if staged is not None:
                return staged

    def close(self) -> None:
        """See the base."""
        self._server.close()
        self._client.close()
        self._announcements.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _await_offer(
        self, stream: Stream, than: WeightId | None, deadline: float, pulse: Callable[[], None]
    ) -> WeightOffer | None:
        """The newest offer above `than`, or None at the deadline; the coordinator may be away meanwhile."""
        while True:
            left = max(0.0, deadline - time.monotonic())
            offer = self._look(stream, than, min(POLL_SECONDS, left))
            pulse()
            if offer is not None or time.monotonic() >= deadline:
                return offer

    def _look(self, stream: Stream, than: WeightId | None, wait: float) -> WeightOffer | None:
        lineage, version = (-1, -1) if than is None else (than.lineage, than.version)
        path = f"/v1/weights/{stream.value}?lineage={lineage}&version={version}&wait={wait:.3f}"
        patience = time.monotonic() + wait + self._timeout
        body = self._client.call("GET", path, None, deadline=patience, wait=wait)
        return None if body == b"null" else WeightOffer.model_validate_json(body)

    def _fetch(self, offer: WeightOffer, pulse: Callable[[], None]) -> StagedWeights | None:
        """The staged weight; None where it is not offered any more."""
        path = self._folder / f"{offer.stream.value}-{offer.id.lineage}-{offer.id.version}.safetensors"
        terms = monotonic_terms(self._token, self._timeout, pulse)
        if not pull(offer, path, terms, self._rounds_of_sources(offer)):
            return None
        self._keep(offer, path)
        return StagedWeights(offer.id, path)

    def _rounds_of_sources(self, offer: WeightOffer) -> Iterator[list[str]]:
        """Addresses to try, in chance order; asked anew for every further round; ends when the offer is replaced."""
        yield self._chance.sample(offer.sources, len(offer.sources))
        while True:
            newest = self._look(offer.stream, None, 0.0)
            if newest is None or newest.id != offer.id:
                return
            yield self._chance.sample(newest.sources, len(newest.sources))

    def _keep(self, offer: WeightOffer, path: Path) -> None:
        """Serves a staged weight to peers; deletes what is older than the one before it."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._server.serve(ServedWeight(offer.stream, offer.id, descriptor, offer.num_bytes, offer.chunk_bytes))
        staged = self._staged[offer.stream]
        staged.append(path)
        while len(staged) > KEPT_FILES:
            staged.pop(0).unlink(missing_ok=True)
        request = SourceRequest(life=self._life, stream=offer.stream, id=offer.id, address=self._server.address)
        with contextlib.suppress(ChannelBroken):  # not waited for: a missing peer costs speed only
            body = request.model_dump_json().encode()
            self._announcements.begin("POST", "/v1/weights/sources", body, timeout=ATTEMPT_SECONDS)


def _no_pulse() -> None:
    """Nobody waits for a sign of life."""
