"""Claims of namespaces: which of several releases of the operator takes care of the RLJobs of a namespace.

    claims = NamespaceClaims(api, "rljob-system/rljob", cache)
    running = create_task(claims.run()); ...; seconds = claims.held_for("team-a")

The replicas of one release share a Lease in the operator's namespace (`kube.lease`). Releases that do not know each
other meet at a Lease in each namespace that has RLJobs: it names the release that takes care of them, and all others
leave them alone. A release that is gone renews no more; after CLAIM.duration_seconds, counted from the last change that
was observed and by no clock of another machine, the next one takes over. A claim is not given back when the leader
ends: its successor of the same release goes on under the same name.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from rljob_operator.kube.api import Api
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.lease import Lease
from rljob_operator.options import CLAIM_NAME, LeaseOptions

CLAIM = LeaseOptions(name=CLAIM_NAME, duration_seconds=90, renew_seconds=60, retry_seconds=5)
"""Longer than a release takes to replace its leader, so that an upgrade hands nothing over."""


RENEW_AFTER_SECONDS = 20.0


REFUSED_SECONDS = 60.0
"""Until a Lease is asked for again that was refused."""


AT_ONCE = 16
"""Leases that are asked for at the same time."""


_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Claim:
    lease: Lease
    due_at: float = 0.0
    missed: bool = False
    """Whether a turn was left out, because the namespace was not this release's at that moment."""

    def held_for(self) -> float:
        if self.lease.is_refused and not self.lease.other_holder:
            return CLAIM.renew_seconds
        return max(0.0, CLAIM.renew_seconds - self.lease.age())

    def state(self) -> tuple[bool, str]:
        return self.held_for() > 0, self.lease.other_holder


class NamespaceClaims:
    """Claims of one release. One that is taken, or found to be another release's, wakes the jobs of its namespace."""

    def __init__(self, api: Api, release: str, cache: Cache, clock: Callable[[], float] = time.monotonic) -> None:
        self.release = release
        self._api = api
        self._cache = cache
        self._clock = clock
        self._claims: dict[str, _Claim] = {}
        self._asked = asyncio.Event()

    def held_for(self, namespace: str) -> float:
        """For how many seconds at least the namespace is this release's from now on; 0: it is not, or not yet.

        Where its Lease is refused (a right, a quota, a webhook) it is this release's unless another one was seen to
        hold it: a job that no release takes care of is worse, and the refusals are counted, logged and alerted.
        """
        claim = self._claims.get(namespace)
        if claim is None:
            self._asked.set()
            return 0.0
        seconds = claim.held_for()
        claim.missed = claim.missed or seconds == 0
        return seconds

    def other_holder(self, namespace: str) -> str:
        """The release that holds the namespace; "" where none but this one does."""
        claim = self._claims.get(namespace)
        return claim.lease.other_holder if claim is not None else ""

    def contended(self) -> list[str]:
        """Namespaces with RLJobs that another release holds."""
        return [namespace for namespace, claim in self._claims.items() if claim.lease.other_holder]

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            # Not by `wait_for`: that of Python 3.11 forgets a cancellation that comes together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(CLAIM.retry_seconds):
                    await self._asked.wait()

    async def look(self) -> None:
        """Takes, renews, or watches every claim for which it is time; forgets those of namespaces without RLJobs."""
        self._asked.clear()
        known, namespaces = self._claims, sorted(self._cache.namespaces())
        self._claims = {namespace: known.get(namespace) or self._new(namespace) for namespace in namespaces}
        now = self._clock()
        due = [namespace for namespace, claim in self._claims.items() if claim.due_at <= now]
        for begin in range(0, len(due), AT_ONCE):
            await asyncio.gather(*(self._try(namespace) for namespace in due[begin : begin + AT_ONCE]))

    def _new(self, namespace: str) -> _Claim:
        return _Claim(Lease(self._api, CLAIM, namespace, self.release, lambda: False, self._clock))

    async def _try(self, namespace: str) -> None:
        claim = self._claims[namespace]
        lease, before = claim.lease, claim.state()
        is_taken = await lease.attempt()
        pause = REFUSED_SECONDS if lease.is_refused else CLAIM.retry_seconds
        claim.due_at = self._clock() + (RENEW_AFTER_SECONDS if is_taken else pause)
        # A renewal may come just after the claim's end: the state is the same, and a turn was left out in between.
        if claim.state() == before and not (claim.missed and claim.held_for() > 0):
            return
        claim.missed = False
        if lease.other_holder:
            _log.warning(
                "the RLJobs of namespace %s are left alone: %s takes care of them by its Lease %s",
                namespace,
                lease.other_holder,
                CLAIM.name,
            )
        elif lease.is_refused:
            _log.warning("namespace %s is served without the Lease %s, which is refused", namespace, CLAIM.name)
        else:
            _log.info("namespace %s is this release's: Lease %s", namespace, CLAIM.name)
        self._cache.wake(namespace)
