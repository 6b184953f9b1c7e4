"""The HostStaged transport: each rank leaves its part in host memory; receivers pull all parts, once for each pod.

Chosen in the factory of this package. A weight is offered after its last part was reported; a receiver's folder gets
its name after the last chunk of the last part is verified. The ranks of a pod take turns: the second links what the
first has pulled.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rljob_api.failpoints import failpoint
from rljob_api.machine.room import named_room
from rljob_api.names import Stream
from rljob_api.wire.identity import PodKey, WeightId
from rljob_api.wire.weights import PartRequest, SourceRequest, WeightOffer, WeightPart
from rljob_workers.dcs.errors import WeightTimeout
from rljob_workers.dcs.membership.coordinator_http import ATTEMPT_SECONDS, ChannelBroken, CoordinatorClient, HttpChannel
from rljob_workers.dcs.membership.rank_context import RankContext
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.dcs.tensor_bytes import StagedPart, digest_of, index_of_parts, stage_part
from rljob_workers.dcs.weights.chunk_transfer import ChunkServer, PullTerms, WantedPart, pull
from rljob_workers.dcs.weights.transport import WeightPublisher, WeightReceiver
from rljob_workers.models.blob import INDEX_FILE, part_file
from rljob_workers.models.weights import Buckets, Folder, Weights

TURN_SECONDS = 0.05
"""Between two checks whether the rank that pulls is done."""


RETAINED_IN_POD = 2
"""A rank that is slower than the others of its pod may still want the weight before the newest."""


CHECKSUMS = ".checksums"


class PodPulls:
    """What the ranks of one pod have pulled, in memory that they share."""

    def __init__(self, weights_dir: Path, pod: PodKey, timeout_seconds: float) -> None:
        self._pod = pod
        self._root = weights_dir / f"{pod}.pulled"
        self._root.mkdir(parents=True, exist_ok=True)
        self._lock = weights_dir / f"{pod}.lock"
        self._timeout = timeout_seconds

    @contextlib.contextmanager
    def turn(self, pulse: Callable[[], None]) -> Iterator[None]:
        """This rank's turn to check and to pull; a rank that dies in its turn loses it.

        Raises WeightTimeout where another rank of the pod has not finished within the time of a pull.
        """
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take(descriptor, pulse)
            yield
        finally:
            os.close(descriptor)

    def find(self, offer: WeightOffer) -> dict[int, bytes] | None:
        """The checksums of each part, where this very weight was pulled already."""
        folder = self.folder_of(offer)
        found = {}
        for part in offer.parts:
            path = folder / part_file(part.index, len(offer.parts))
            try:
                checksums = path.with_name(path.name + CHECKSUMS).read_bytes()
            except FileNotFoundError:
                return None
            if digest_of(checksums) != part.digest:
                return None  # another layout, or a job before this one
            found[part.index] = checksums
        return found

    @contextlib.contextmanager
    def pulling(self, offer: WeightOffer) -> Iterator[Path]:
        """A folder to pull into, which goes again unless `keep` was called."""
        partial = self._root / f".partial-{self.folder_of(offer).name}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def keep(self, offer: WeightOffer, pulled: Path, checksums: Mapping[int, bytes]) -> None:
        """All parts of `pulled` are right: from now on it is found."""
        for index, content in checksums.items():
            (pulled / (part_file(index, len(offer.parts)) + CHECKSUMS)).write_bytes(content)
        folder = self.folder_of(offer)
        shutil.rmtree(folder, ignore_errors=True)
        pulled.rename(folder)
        self._prune(offer)

    def link(self, offer: WeightOffer, target: Path) -> None:
        """Makes `target` a folder of its own with the same files."""
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for path in self.folder_of(offer).iterdir():
            if not path.name.endswith(CHECKSUMS):
                os.link(path, target / path.name)

    def folder_of(self, offer: WeightOffer) -> Path:
        """Where the pod has this weight."""
        return self._root / folder_name(offer)

    def _take(self, descriptor: int, pulse: Callable[[], None]) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pulse()
            if time.monotonic() >= deadline:
                raise WeightTimeout(
                    f"{self._pod}: another rank of this pod has been pulling a weight for {self._timeout:.0f} s "
                    "(weightSync.timeoutSeconds)."
                )
            time.sleep(TURN_SECONDS)

    def _prune(self, newest: WeightOffer) -> None:
        """Older weights of the stream; ranks that still read one have links of their own."""
        of_stream = sorted(self._root.glob(f"{newest.stream.value}-*"), key=lambda path: path.stat().st_mtime_ns)
        for path in of_stream[:-RETAINED_IN_POD]:
            shutil.rmtree(path, ignore_errors=True)


def folder_name(offer: WeightOffer) -> str:
    """Of a weight, in the pod's memory and in each rank's own."""
    return f"{offer.stream.value}-{offer.id.lineage}-{offer.id.version}"


POLL_SECONDS = 0.5
"""One turn of the long poll: how long a receiver stays away from its pulse."""


RETAINED_FOLDERS = 2
"""The newest weight, and the one before it that an engine may still be loading."""


class HostStagedPublisher(WeightPublisher):
    """Stages, serves, offers."""

    def __init__(self, context: RankContext, session: RankSession) -> None:
        self._incarnation = session.incarnation
        self._chunk_bytes = context.job.spec.weight_sync.chunk_bytes
        self._client = CoordinatorClient(context.endpoints)
        self._server = ChunkServer(context.endpoints.address, context.endpoints.token)

    def publish(self, weights: Weights[Buckets], *, timeout_seconds: float) -> None:
        """See the base. Returns after about one copy, one checksum and one request."""
        tensors, share = weights.source.on_host(), weights.source.share
        if share is None:
            return
        staged = stage_part(f"{weights.stream.value}-{weights.id}-{share.index}", tensors, self._chunk_bytes)
        self._server.serve(weights.stream, weights.id, {share.index: staged})
        failpoint("publish.part_staged")
        part = WeightPart(
            stream=weights.stream,
            id=weights.id,
            index=share.index,
            count=share.count,
            layout=share.layout,
            num_bytes=staged.num_bytes,
            chunk_bytes=staged.chunk_bytes,
            digest=digest_of(staged.checksums),
            address=self._server.address,
            probe=weights.probe,
        )
        request = PartRequest(incarnation=self._incarnation, part=part)
        self._client.call("POST", "/v1/weights/parts", request, deadline=time.monotonic() + timeout_seconds)

    def close(self) -> None:
        """See the base."""
        self._server.close()
        self._client.close()


class HostStagedReceiver(WeightReceiver):
    """Waits, pulls, verifies, serves on."""

    def __init__(self, context: RankContext, session: RankSession) -> None:
        self._incarnation = session.incarnation
        self._token = context.endpoints.token
        self._timeout = float(context.job.spec.weight_sync.timeout_seconds)
        self._client = CoordinatorClient(context.endpoints)
        self._server = ChunkServer(context.endpoints.address, self._token)
        self._announcements = HttpChannel(context.endpoints.coordinator, context.endpoints.token)
        self._chance = random.Random(self._incarnation.id)
        self._folder = Path(context.endpoints.weights_dir) / f"{self._incarnation.key}"
        # What an earlier incarnation of this rank left may be read by the engine still: only its open file stays.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._pulls = PodPulls(Path(context.endpoints.weights_dir), self._incarnation.key.pod, self._timeout)
        self._staged: dict[Stream, list[Path]] = {stream: [] for stream in Stream}

    def await_newer(
        self,
        stream: Stream,
        than: WeightId | None,
        *,
        deadline: float,
        pulse: Callable[[], None] | None = None,
    ) -> Weights[Folder] | None:
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
            offer = self._poll(stream, than, min(POLL_SECONDS, left))
            pulse()
            if offer is not None or time.monotonic() >= deadline:
                return offer

    def _poll(self, stream: Stream, than: WeightId | None, wait: float) -> WeightOffer | None:
        lineage, version = (-1, -1) if than is None else (than.lineage, than.version)
        path = f"/v1/weights/{stream.value}?lineage={lineage}&version={version}&wait={wait:.3f}"
        patience = time.monotonic() + wait + self._timeout
        body = self._client.call("GET", path, None, deadline=patience, wait=wait)
        return None if body == b"null" else WeightOffer.model_validate_json(body)

    def _fetch(self, offer: WeightOffer, pulse: Callable[[], None]) -> Weights[Folder] | None:
        """The staged weight; None where it is not offered any more. The ranks of a pod pull it once."""
        folder = self._folder / folder_name(offer)
        with self._pulls.turn(pulse):
            checksums = self._pulls.find(offer) or self._pull(offer, pulse)
            if checksums is None:
                return None
            self._pulls.link(offer, folder)
        self._keep(offer, folder, checksums)
        return Weights(offer.id, offer.stream, Folder(folder), offer.probe)

    def _pull(self, offer: WeightOffer, pulse: Callable[[], None]) -> dict[int, bytes] | None:
        """Pulls it for the whole pod; the checksums of each part, None where it is not offered any more."""
        with (
            named_room(self._folder, f"weights on their way ({offer.stream} {offer.id})"),
            self._pulls.pulling(offer) as partial,
        ):
            checksums = self._pull_parts(offer, partial, pulse)
            if checksums is not None:
                files = [part_file(part.index, len(offer.parts)) for part in offer.parts]
                if len(files) > 1:
                    (partial / INDEX_FILE).write_text(index_of_parts(partial, files, offer.num_bytes))
                self._pulls.keep(offer, partial, checksums)
            return checksums

    def _pull_parts(self, offer: WeightOffer, folder: Path, pulse: Callable[[], None]) -> dict[int, bytes] | None:
        """Pulls every part into `folder`, in chance order, so that receivers do not all ask one owner at the same time.

        Gives the checksums of each; None where the weight is not offered any more.
        """
        terms = PullTerms(self._token, time.monotonic() + self._timeout, pulse)
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
        """Addresses to try, in chance order; asked again for every further round; ends when the offer is replaced."""
        newest: WeightOffer | None = offer
        while newest is not None and (newest.id, newest.layout) == (offer.id, offer.layout):
            sources = newest.sources(newest.parts[index])
            yield self._chance.sample(sources, len(sources))
            newest = self._poll(offer.stream, None, 0.0)

    def _keep(self, offer: WeightOffer, folder: Path, checksums: Mapping[int, bytes]) -> None:
        """Serves a staged weight to peers; deletes what is older than the one before it."""
        parts = {
            part.index: StagedPart(
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
        while len(staged) > RETAINED_FOLDERS:
            shutil.rmtree(staged.pop(0), ignore_errors=True)
        request = SourceRequest(
            incarnation=self._incarnation, stream=offer.stream, id=offer.id, address=self._server.address
        )
        with contextlib.suppress(ChannelBroken):  # not waited for: a missing peer costs speed only
            body = request.model_dump_json().encode()
            self._announcements.begin("POST", "/v1/weights/sources", body, timeout=ATTEMPT_SECONDS)


def _no_pulse() -> None:
    """This receiver owes no beats while it waits."""
