"""The claim that was made for a job's checkpoints: what there is of it, what it keeps, and its growth.

A larger size is asked for in a write of its own: a refusal of it must keep nothing else from being applied.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from rljob_api.cluster import ANNOTATION_RECORDED, ANNOTATION_RUN, checkpoint_claim_name
from rljob_api.quantity import value
from rljob_api.spec import RLJobSpec
from rljob_api.status import RLJobStatus
from rljob_operator.build import Found
from rljob_operator.core import RetainedRun, VolumeFact
from rljob_operator.core.conditions import rests
from rljob_operator.kube.api import Api, Json
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.errors import ApiConflict, ApiNotFound, ApiRefused, ApiUnreachable
from rljob_operator.kube.kinds import CLAIMS
from rljob_operator.kube.ownership import ObjectHolder, holder
from rljob_operator.kube.views import ClaimView, JobKey, OwnedView, view_owned

RETRY_SECONDS = 60.0
"""After a refusal: a storage class seldom changes its mind, and only an administrator raises a quota."""


_log = logging.getLogger(__name__)


Objects = Mapping[tuple[str, str], OwnedView]
"""A job's, by kind and name."""


def found(spec: RLJobSpec, key: JobKey, uid: str, there: Objects) -> Found:
    """What there is of the claim before it is built. Pure."""
    view = _of(key, there)
    if view is None or view.claim is None or view.claim.run or spec.checkpoint.volume.on_delete is not None:
        return Found.NOTHING
    return Found.PROMISED if view.controller is not None and view.controller.uid == uid else Found.NOTHING


def retained_run(key: JobKey, uid: str, there: Objects, wanted: Sequence[Json]) -> RetainedRun | None:
    """What an earlier job of this name has left for this one, which may not have made it its own yet. Pure."""
    view, manifest = _of(key, there), _wanted(key, wanted)
    if view is None or view.claim is None or manifest is None:
        return None
    if holder(view, key, uid, manifest["metadata"]["annotations"].get(ANNOTATION_RUN, "")) is not ObjectHolder.JOB:
        return None
    version, _, folder = view.claim.recorded.partition(" ")
    return RetainedRun(view.name, int(version), folder or None) if version.isdecimal() else RetainedRun(view.name)


def as_large_as_it_is(manifest: Json, known: OwnedView) -> Json:
    """The manifest of a claim that is there, with the size that it asks for now; any other manifest as it is. Pure."""
    if manifest["kind"] != CLAIMS.kind or known.claim is None or not known.claim.size:
        return manifest
    return {**manifest, "spec": {**manifest["spec"], "resources": {"requests": {"storage": known.claim.size}}}}


class CheckpointClaim:
    """Of one job: writes what changes while it lives."""

    def __init__(self, api: Api, cache: Cache, key: JobKey, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._cache = cache
        self._key = key
        self._clock = clock
        self._refused: tuple[str, str, float] | None = None
        """Which size, why, and when it may be asked for again."""

    async def grow(self, uid: str, wanted: Sequence[Json]) -> VolumeFact | None:
        """Asks for a larger size where the spec does; what became of that. None: no claim was made for the job."""
        manifest, view = _wanted(self._key, wanted), _of(self._key, self._cache.owned(self._key))
        if manifest is None or view is None or view.claim is None or not view.claim.size:
            return None
        if holder(view, self._key, uid) is not ObjectHolder.JOB:
            return None
        size: str = manifest["spec"]["resources"]["requests"]["storage"]
        claim = view.claim
        if value(claim.size) < value(size) and not self._waits(size):
            claim = await self._ask(view, claim, size)
        is_refused = self._refused is not None and self._refused[0] == size and value(claim.size) < value(size)
        return VolumeFact(
            claim=view.name,
            wanted=size,
            size=claim.size,
            capacity=claim.capacity,
            is_large_enough=claim.capacity is not None and value(claim.capacity) >= value(claim.size),
            platform_message=claim.expansion_message,
            refusal=self._refused[1] if is_refused and self._refused is not None else "",
        )

    async def note_record(self, uid: str, status: RLJobStatus) -> None:
        """Writes on the claim how far a job came that has ended or was suspended, for readers without the job.

        Before the job may be deleted. While a job runs the claim records nothing: the next checkpoint would outdate it.
        """
        view = _of(self._key, self._cache.owned(self._key))
        if view is None or view.claim is None or view.claim.run_of != uid or status.restart.epoch == 0:
            return
        recorded = _recorded(status)
        if view.claim.recorded != recorded:
            await self._patch(view, {"metadata": {"annotations": {ANNOTATION_RECORDED: recorded or None}}})

    def _waits(self, size: str) -> bool:
        return self._refused is not None and self._refused[0] == size and self._clock() < self._refused[2]

    async def _ask(self, view: OwnedView, claim: ClaimView, size: str) -> ClaimView:
        try:
            written = await self._patch(view, {"spec": {"resources": {"requests": {"storage": size}}}})
        except (ApiRefused, ApiUnreachable) as error:
            # A failing webhook answers 500 or not at all: the size of a volume must not keep all else from being done.
            if isinstance(error, ApiRefused) and error.retry_after > 0:
                raise
            why = error.message if isinstance(error, ApiRefused) else str(error)
            self._refused = (size, why.rstrip("."), self._clock() + RETRY_SECONDS)
            return claim
        self._refused = None
        return claim if written is None or written.claim is None else written.claim

    async def _patch(self, view: OwnedView, body: Json) -> OwnedView | None:
        """The claim as it is then; None where it is gone, or another one has its name."""
        of_this = {**body, "metadata": {**body.get("metadata", {}), "uid": view.uid}}
        try:
            written = await self._api.merge(CLAIMS, self._key.namespace, view.name, of_this)
        except (ApiNotFound, ApiConflict):
            return None
        changed = view_owned(CLAIMS.kind, written)
        self._cache.put_owned(self._key, changed, quietly=True)
        _log.info("%s: changed %s %s", self._key, CLAIMS.kind, view.name)
        return changed


def _of(key: JobKey, there: Objects) -> OwnedView | None:
    return there.get((CLAIMS.kind, checkpoint_claim_name(key.name)))


def _recorded(status: RLJobStatus) -> str:
    """The last record of a job that makes no more for now."""
    training = status.training
    if training.checkpoint is None or not rests(status):
        return ""
    return f"{training.checkpoint} {training.checkpoint_folder or ''}".strip()


def _wanted(key: JobKey, wanted: Sequence[Json]) -> Json | None:
    """The manifest of the claim, where the job is to have one that is made for it."""
    name = checkpoint_claim_name(key.name)
    return next(
        (each for each in wanted if (each["kind"], each["metadata"]["name"]) == (CLAIMS.kind, name)),
        None,
    )
