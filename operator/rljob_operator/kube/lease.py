"""The Lease: which of several candidates has a right (coordination.k8s.io): replicas to lead, releases to a namespace.

    lease = Lease(api, options, identity, namespace, hangs)
    await side.run(lease.acquire()); keeping = side.begin(lease.keep()); ...; lease.check() before every write

It is acquired, kept and released in a loop of its own (`cluster.health_server`), over an API session of its own, so
that a busy main loop delays no renewal; `check` and `age` may be called by any thread. A Lease whose main loop hangs is
no longer renewed, so that another replica takes over.

Its age is taken by this machine's monotonic clock, from before the request that renewed it: a process that was paused
finds its lease too old the moment it runs again, whatever the clocks of others say. The official client's election is
not used: it counts with the wall clock, and has no deadline for a request and no way to ask for the age.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from rljob_operator.kube.api import Api, Json
from rljob_operator.kube.errors import ApiConflict, ApiNotFound, ApiRefused, ApiUnreachable, LeadershipLost
from rljob_operator.kube.kinds import LEASES
from rljob_operator.options import LeaseOptions

_log = logging.getLogger(__name__)


_NEVER = float("-inf")


LONGEST_IDENTITY = 320
"""Characters of another holder in messages: a namespace and a name. A Lease may hold any text."""


LONGEST_DURATION_SECONDS = 3600.0
"""The longest that the options allow."""


class Lease:
    """One candidate."""

    def __init__(
        self,
        api: Api,
        options: LeaseOptions,
        namespace: str,
        identity: str,
        hangs: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._options = options
        self._namespace = namespace
        self._identity = identity
        self._hangs = hangs
        self._clock = clock
        self._renewed_at = _NEVER
        self._seen: tuple[object, ...] = ()
        self._seen_at = _NEVER
        self.other_holder = ""
        """Another candidate that held it when it was last read."""
        self.is_refused = False
        """Whether the API server refuses the Lease: a right, a quota, a webhook. No answer leaves this as it was."""

    def age(self) -> float:
        """Seconds since this replica last knew that it leads."""
        return self._clock() - self._renewed_at

    def check(self) -> None:
        """Raises LeaseLost unless this replica leads now."""
        if self.age() >= self._options.renew_seconds:
            raise LeadershipLost(
                f"Lease {self._options.name}: not renewed for {self.age():.1f} s "
                f"(lease.renewSeconds {self._options.renew_seconds:g}), so that nothing may be written any more"
            )

    async def acquire(self) -> None:
        """Waits until this replica leads."""
        while not await self.attempt():
            await asyncio.sleep(self._options.retry_seconds * random.uniform(0.8, 1.2))
        _log.info("lease %s/%s is held by %s", self._namespace, self._options.name, self._identity)

    async def keep(self) -> None:
        """Renews; returns when the lease is lost, or when who holds it hangs."""
        while self.age() < self._options.renew_seconds:
            if self._hangs():
                _log.error("lease %s: the main loop hangs, so that the lease is not renewed", self._options.name)
                return
            left = self._options.renew_seconds - self.age()
            await asyncio.sleep(min(self._options.retry_seconds, max(0.0, left)))
            await self.attempt()

    async def release(self) -> None:
        """Lets another replica lead at once. The caller writes nothing afterwards."""
        if self.age() >= self._options.renew_seconds:
            return
        self._renewed_at = _NEVER
        try:
            lease = await self._read()
            if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
                await self._write(lease)
        except (ApiRefused, ApiUnreachable) as error:
            _log.info("the lease was not released: %s", error)

    async def attempt(self) -> bool:
        """Takes or renews the lease if that is allowed."""
        asked_at, was_read = self._clock(), False
        try:
            # Long enough for an API server that is slow, and short enough for a second attempt after a lost packet.
            async with asyncio.timeout(self._options.renew_seconds / 2):
                lease = await self._read()
                was_read = True
                if lease is None:
                    await self._api.claim("POST", LEASES, LEASES.path(self._namespace), self._manifest())
                elif self._is_ours_to_take(lease["spec"]):
                    await self._write(self._taken(lease))
                else:
                    self._renewed_at = _NEVER
                    self.other_holder = lease["spec"]["holderIdentity"][:LONGEST_IDENTITY]
                    self.is_refused = False
                    return False
        except ApiConflict:
            return False
        except (ApiRefused, ApiUnreachable, TimeoutError) as error:
            if isinstance(error, ApiRefused):
                self.is_refused = _is_lasting(error, was_read=was_read)
            _log.warning("lease %s: %s", self._options.name, str(error) or "no answer in time")
            return False
        self._renewed_at = asked_at
        self.other_holder, self.is_refused = "", False
        return True

    def _is_ours_to_take(self, spec: Json) -> bool:
        """Ours, free, or not renewed for its duration while we watched it."""
        holder = spec.get("holderIdentity")
        if not holder or holder == self._identity:
            return True
        seen = (holder, spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
        duration = min(LONGEST_DURATION_SECONDS, float(spec.get("leaseDurationSeconds") or 0))
        return self._clock() - self._seen_at > duration

    def _taken(self, lease: Json) -> Json:
        spec: dict[str, Any] = lease["spec"]
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = _now()
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": math.ceil(self._options.duration_seconds),  # whole seconds, and never less
            "renewTime": _now(),
        }
        return lease

    def _manifest(self) -> Json:
        name = {"name": self._options.name, "namespace": self._namespace}
        body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": name, "spec": {}}
        return self._taken(body)

    async def _read(self) -> Json | None:
        try:
            lease = await self._api.get(LEASES, self._namespace, self._options.name)
        except ApiNotFound:
            return None
        lease["spec"] = lease.get("spec") or {}
        return lease

    async def _write(self, lease: Json) -> None:
        await self._api.claim("PUT", LEASES, LEASES.path(self._namespace, self._options.name), lease)


def _is_lasting(error: ApiRefused, *, was_read: bool) -> bool:
    """Whether the Lease itself is refused: a busy API server asks for time, or fails reads, which no webhook does."""
    return error.status == 403 or (was_read and error.retry_after == 0)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
