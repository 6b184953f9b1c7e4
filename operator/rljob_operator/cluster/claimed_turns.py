"""Turns of jobs whose namespace is this release's; the others are left alone, and an Event says so once.

Called by the workers. A turn ends before its namespace can be another release's.
"""

import asyncio

from rljob_operator.cluster.reconcile import Reconciler
from rljob_operator.core import Reason
from rljob_operator.kube.accepted_spec import is_ours
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.events import Events, warning
from rljob_operator.kube.namespace_claims import CLAIM, NamespaceClaims
from rljob_operator.kube.views import JobKey
from rljob_operator.kube.work_queue import NextTurn


class ClaimedTurns:
    """The turns of all jobs."""

    def __init__(self, reconciler: Reconciler, claims: NamespaceClaims, cache: Cache, events: Events) -> None:
        self._reconciler = reconciler
        self._claims = claims
        self._cache = cache
        self._events = events
        self._reported: dict[JobKey, tuple[str, str]] = {}
        """Uid of a job, and the release that its Event has named."""

    async def turn(self, key: JobKey) -> NextTurn | None:
        """The reconciler's, where the namespace is this release's. Where it is not, a change of the claim is awaited.

        What is remembered of a job does not outlive the claim: another release may have brought it on since.
        """
        seconds = self._claims.held_for(key.namespace)
        if seconds > 0:
            self._reported.pop(key, None)
            async with asyncio.timeout(seconds):
                return await self._reconciler.turn(key)
        await self._reconciler.forget(key)
        await self._report(key)
        return None

    async def _report(self, key: JobKey) -> None:
        raw, holder = self._cache.job(key), self._claims.other_holder(key.namespace)
        if raw is None or not is_ours(raw):
            self._reported.pop(key, None)
            return
        uid: str = raw["metadata"]["uid"]
        if not holder or self._reported.get(key) == (uid, holder):
            return
        self._reported[key] = uid, holder
        message = (
            f"the operator {self._claims.release} leaves this job alone: {holder} takes care of namespace"
            f" {key.namespace} by the Lease {CLAIM.name}. Let one of the two serve it (`namespaces` of the chart), or"
            f" uninstall {holder}: {CLAIM.duration_seconds:g} s after its last renewal this operator takes over"
        )
        await self._events.emit(key, raw, warning(Reason.OTHER_OPERATOR.value, message), once=holder)
