"""The HostStaged transport: each rank leaves its part in host memory and goes on; receivers pull all parts.

Chosen in the factory of this package. Half a weight is never visible: it is offered after the last of its parts was
told, and a receiver's folder appears after the last chunk of the last part is verified.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.failpoints import failpoint
from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import PartRequest, Probe, SourceRequest, Stream, WeightOffer, WeightPart
from rljob_workers.dcs.blob import digest_of, stage_blob, tensor_names
from rljob_workers.dcs.channel import ChannelBroken, HttpChannel
from rljob_workers.dcs.client import ATTEMPT_SECONDS, CoordinatorClient
from rljob_workers.dcs.context import RankContext
from rljob_workers.dcs.session import RankSession
from rljob_workers.dcs.weights.base import StagedWeights, WeightPublisher, WeightReceiver
from rljob_workers.dcs.weights.pod_pulls import PodPulls, folder_name
from rljob_workers.dcs.weights.pulling import WantedPart, monotonic_terms, pull
from rljob_workers.dcs.weights.serving import ChunkServer, ServedPart
from rljob_workers.models.blob import INDEX_FILE, part_file
from rljob_workers.models.share import WHOLE, WeightShare

if TYPE_CHECKING:
    import torch

POLL_SECONDS = 0.5
"""One turn of the long poll: how long a receiver stays away from its pulse."""
KEPT_FOLDERS = 2
"""The newest weight, and the one before it that an engine may still be loading."""


class HostStagedPublisher(WeightPublisher):
    """Stages, serves, offers."""

    def __init__(self, context: RankContext, session: RankSession) -> None:
        self._life = session.life
        self._chunk_bytes = context.job.spec.weight_sync.chunk_bytes
        self._client = CoordinatorClient(context.endpoints)
        self._server = ChunkServer(context.endpoints.address, context.endpoints.token)

    def publish(
        self,
        stream: Stream,
        weight: WeightId,
        tensors: Mapping[str, torch.Tensor],
        share: WeightShare = WHOLE,
        *,
        deadline: float,
        probe: Probe | None = None,
    ) -> None:
        """See the base. Returns after about one copy, one checksum and one request."""
        blob = stage_blob(f"{stream.value}-{weight}-{share.index}", tensors, self._chunk_bytes)
        served = ServedPart(blob.descriptor, blob.num_bytes, blob.chunk_bytes, blob.checksums)
        self._server.serve(stream, weight, {share.index: served})
        failpoint("publish.part_staged")
        part = WeightPart(
            stream=stream,
            id=weight,
            index=share.index,
            count=share.count,
            layout=share.layout,
            num_bytes=blob.num_bytes,
            chunk_bytes=blob.chunk_bytes,
            digest=digest_of(blob.checksums),
            address=self._server.address,
            probe=probe,
        )
        request = PartRequest(life=self._life, part=part)
        self._client.call("POST", "/v1/weights/parts", request, deadline=deadline)

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
        self._pulls = PodPulls(Path(context.endpoints.weights_dir), self._life.key.pod, self._timeout)
        self._staged: dict[Stream, list[Path]] = {stream: [] for stream in Stream}

    def await_newer(
        self,
        stream: Stream,
        than: WeightId | None,
        *,
        deadline: float,
        pulse: Callable[[], None] | None = None,
    ) -> StagedWeights | None:
        """See the base. A weight that is replaced while it is pulled is given up for the newer one, all its parts."""
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
        """The staged weight; None where it is not offered any more. The ranks of a pod pull it once."""
        folder = self._folder / folder_name(offer)
        with self._pulls.turn(pulse):
            checksums = self._pulls.find(offer) or self._pull(offer, pulse)
            if checksums is None:
                return None
            self._pulls.link(offer, folder)
        self._keep(offer, folder, checksums)
        return StagedWeights(offer.id, folder, offer.num_bytes, offer.probe)

    def _pull(self, offer: WeightOffer, pulse: Callable[[], None]) -> dict[int, bytes] | None:
        """Pulls it for the whole pod; the checksums of each part, None where it is not offered any more."""
        with self._pulls.pulling(offer) as partial:
            checksums = self._pull_parts(offer, partial, pulse)
            if checksums is not None:
                _write_index(partial, offer)
                self._pulls.keep(offer, partial, checksums)
            return checksums

    def _pull_parts(self, offer: WeightOffer, folder: Path, pulse: Callable[[], None]) -> dict[int, bytes] | None:
        """Pulls every part into `folder`, in chance order, so that receivers do not all ask one owner at the same time.

        Gives the checksums of each; None where the weight is not offered any more.
        """
        terms = monotonic_terms(self._token, self._timeout, pulse)
        checksums: dict[int, bytes] = {}
        for part in self._chance.sample(offer.parts, len(offer.parts)):
            path = folder / part_file(part.index, len(offer.parts))
            found = pull(
                WantedPart(offer.stream, offer.id, part), path, terms, self._rounds_of_sources(offer, part.index)
            )
            if found is None:
                return None
            checksums[part.index] = found
        return checksums

    def _rounds_of_sources(self, offer: WeightOffer, index: int) -> Iterator[list[str]]:
        """Addresses to try, in chance order; asked anew for every further round; ends when the offer is replaced."""
        newest: WeightOffer | None = offer
        while newest is not None and (newest.id, newest.layout) == (offer.id, offer.layout):
            sources = newest.sources(newest.parts[index])
            yield self._chance.sample(sources, len(sources))
            newest = self._look(offer.stream, None, 0.0)

    def _keep(self, offer: WeightOffer, folder: Path, checksums: Mapping[int, bytes]) -> None:
        """Serves a staged weight to peers; deletes what is older than the one before it."""
        parts = {
            part.index: ServedPart(
                os.open(folder / part_file(part.index, len(offer.parts)), os.O_RDONLY | os.O_CLOEXEC),
                part.num_bytes,
                part.chunk_bytes,
                checksums[part.index],
            )
            for part in offer.parts
        }
        self._server.serve(offer.stream, offer.id, parts)
        staged = self._staged[offer.stream]
        staged.append(folder)
        while len(staged) > KEPT_FOLDERS:
            shutil.rmtree(staged.pop(0), ignore_errors=True)
        request = SourceRequest(life=self._life, stream=offer.stream, id=offer.id, address=self._server.address)
        with contextlib.suppress(ChannelBroken):  # not waited for: a missing peer costs speed only
            body = request.model_dump_json().encode()
            self._announcements.begin("POST", "/v1/weights/sources", body, timeout=ATTEMPT_SECONDS)


def _write_index(folder: Path, offer: WeightOffer) -> None:
    """What tells readers of a folder with several parts which tensor is in which."""
    count = len(offer.parts)
    if count == 1:
        return
    files = [part_file(part.index, count) for part in offer.parts]
    index = {
        "metadata": {"total_size": offer.num_bytes},
        "weight_map": {name: file for file in files for name in tensor_names(folder / file)},
    }
    (folder / INDEX_FILE).write_text(json.dumps(index))


def _no_pulse() -> None:
    """Nobody waits for a sign of life."""
