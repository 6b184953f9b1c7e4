"""The watch of RLJobs: kopf's, begun again whenever it is not open, with its state for probes and metrics.

Called by the operator's process, once for each namespace that it serves. The only room that imports kopf, whose RLJob
events go into the cache; no timers, daemons, finalizers or annotations of kopf's are used, since each of those writes
to every job.

kopf has a loop and thread of its own: when it ends, as by a 404 after the CRD was deleted, it cancels every task of the
loop that it ran in. A CRD that comes later it never notices without the right to watch CRDs, so it is begun only once
the API server serves RLJobs.
"""

import asyncio
import os
import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import kopf

from rljob_api.cluster import API_GROUP, API_VERSION, RLJOB_PLURAL
from rljob_operator.cluster.health_server import SideLoop
from rljob_operator.kube.api import CONNECT_SECONDS, REQUEST_SECONDS, Api, Json
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.errors import ApiRefused, ApiUnreachable, refusal
from rljob_operator.kube.informer import PAGE, SILENCE_SECONDS
from rljob_operator.kube.kinds import RLJOBS
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.kube.watch_state import WatchState
from rljob_operator.rate_limit import backoff_seconds

SERVER_SECONDS = 60
"""How long the API server holds the watch. kopf keeps bookmarks to itself: only the next watch shows that it lives."""


OPEN_SECONDS = 30.0
"""A kopf that has had no answer for longer, neither to a list nor to a watch, is ended, and another one begun."""


STUCK_SECONDS = SILENCE_SECONDS + OPEN_SECONDS
"""The same while its watch is open: kopf gives up a silent stream after the first of these."""


RETRY_SECONDS = (0.2, 5.0)
"""Between two attempts: each asks no more than whether RLJobs are served."""


LOOK_SECONDS = 1.0


KOPF_BACKOFFS = (1.0, 2.0, 4.0)
"""Retries of a request that fails, before kopf ends by it; kopf's own go on for ten minutes."""


def in_cluster() -> bool:
    """Whether the process is a pod's, with a service account; a KUBECONFIG that was given goes first."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ


class JobWatch:
    """The watch of one namespace, or of all (None).

    `listed` is called when RLJobs are listed anew: kopf does not report what is no longer in the list.
    """

    def __init__(
        self, api: Api, namespace: str | None, cache: Cache, metrics: Metrics, listed: Callable[[], None]
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._cache = cache
        self._metrics = metrics
        self._listed = listed
        within = f" in {namespace}" if namespace else ""
        self.state = WatchState(f"the watch of {RLJOBS.plural}{within}", RLJOBS.plural)

    async def run(self) -> None:
        """Until cancelled."""
        self.state.begin()
        fruitless = 0
        while True:
            opened_before = self.state.opened_count
            self._count(await self._watch())
            fruitless = 1 if self.state.opened_count > opened_before else fruitless + 1
            await asyncio.sleep(backoff_seconds(fruitless, *RETRY_SECONDS) * random.uniform(0.5, 1.0))

    async def _watch(self) -> str:
        """One kopf, from its begin to its end; the cause of that."""
        try:
            if not await self._api.serves(RLJOBS):
                raise refusal(RLJOBS.api_version, 404, "NotFound", f"{RLJOBS.plural} are not served: apply the CRD")
        except (ApiRefused, ApiUnreachable) as error:
            self.state.broke(error)
            return type(error).__name__
        self.state.answered()
        session = _Session(self.state, asyncio.get_running_loop(), self._take, self._listed, self._count)
        async with SideLoop() as side:
            running = side.begin(session.run(self._namespace))
            problem = await self._end_of(running)
            running.cancel()
        self.state.failed(problem)
        return session.refused_by or "kopf"

    async def _end_of(self, running: asyncio.Future[None]) -> str:
        """Returns when kopf has ended, or has no answers; why."""
        while not running.done():
            await asyncio.wait({running}, timeout=LOOK_SECONDS)
            if self.state.silence() > (STUCK_SECONDS if self.state.is_open else OPEN_SECONDS):
                return self.state.problem or f"kopf has had no answer for {self.state.silence():.0f} s"
        error = None if running.cancelled() else running.exception()
        return self.state.problem or f"kopf has ended: {error!r}"

    def _take(self, event: Json) -> None:
        raw: Json = event["object"]
        self.state.reported()
        if event["type"] == "DELETED":
            self._cache.mark_gone(raw["metadata"]["uid"])
            self._cache.drop_job(raw)
        else:
            self._cache.put_job(raw)

    def _count(self, cause: str) -> None:
        self._metrics.watch_restarts.labels(RLJOBS.plural, cause).inc()


class _Session:
    """One kopf and its HTTP session, in the loop that `run` is called in; what it sees goes to the `main` loop."""

    def __init__(
        self,
        state: WatchState,
        main: asyncio.AbstractEventLoop,
        take: Callable[[Json], None],
        listed: Callable[[], None],
        count: Callable[[str], None],
    ) -> None:
        self._state = state
        self._main = main
        self._take = take
        self._listed = listed
        self._count = count
        self._sessions: list[aiohttp.ClientSession] = []
        self._given: kopf.ConnectionInfo | None = None
        """Credentials that kopf got last."""
        self.refused_by = ""
        """Kind of the last refusal, while none was taken back."""

    async def run(self, namespace: str | None) -> None:
        """Until kopf ends or is cancelled."""
        try:
            await kopf.operator(
                registry=self._registry(),
                standalone=True,
                clusterwide=namespace is None,
                namespaces=[] if namespace is None else [namespace],
                # Its own would be made of the user's name, and a container's user has none.
                identity=cast(Any, "rljob-operator"),
            )
        finally:
            for session in self._sessions:
                await session.close()

    def _registry(self) -> kopf.OperatorRegistry:
        """The handlers that kopf calls."""
        made = kopf.OperatorRegistry()

        @kopf.on.startup(registry=made)
        async def configure(settings: kopf.OperatorSettings, **_: object) -> None:
            settings.persistence.diffbase_storage = _NoDifferences()
            settings.posting.enabled = False
            settings.scanning.disabled = True
            settings.peering.standalone = True
            settings.process.ultimate_exiting_timeout = None  # it would kill the whole process
            settings.networking.connect_timeout = CONNECT_SECONDS
            settings.networking.request_timeout = REQUEST_SECONDS
            settings.networking.error_backoffs = KOPF_BACKOFFS
            settings.watching.inactivity_timeout = SILENCE_SECONDS
            settings.watching.server_timeout = SERVER_SECONDS
            settings.watching.chunk_size = PAGE

        @kopf.on.login(registry=made)
        async def login(**kwargs: Any) -> kopf.AiohttpSession | None:  # noqa: ANN401 - kopf's own
            found = kopf.login_with_service_account(**kwargs) if in_cluster() else kopf.login_with_kubeconfig(**kwargs)
            # kopf logs in again after a 401, and never pauses: by the same credentials it would be refused again.
            if found is None or found == self._given:
                return None
            self._given = found
            return self._connected(found)

        @kopf.on.event(API_GROUP, API_VERSION, RLJOB_PLURAL, registry=made)
        async def see(event: kopf.RawEvent, **_: object) -> None:
            self._main.call_soon_threadsafe(self._take, dict(event))

        return made

    def _connected(self, found: kopf.ConnectionInfo) -> kopf.AiohttpSession:
        """A session of ours: kopf does not report which of its requests the API server has answered."""
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=found.as_ssl_context()),
            headers=found.as_http_headers(),
            proxy=found.proxy_url,
            trust_env=found.trust_env,
            trace_configs=[self._trace()],
        )
        self._sessions.append(session)
        return kopf.AiohttpSession(
            server=found.server,
            priority=found.priority,
            default_namespace=found.default_namespace,
            expiration=found.expiration,
            aiohttp_session=session,
        )

    def _trace(self) -> aiohttp.TraceConfig:
        async def begun(_: object, __: SimpleNamespace, asked: aiohttp.TraceRequestStartParams) -> None:
            if _is_of_jobs(asked.url.path) and self._state.is_open:
                self._state.ended()
                self._count("ended" if _is_watch(asked.url.query) else "gone")

        async def answered(_: object, __: SimpleNamespace, asked: aiohttp.TraceRequestEndParams) -> None:
            if _is_of_jobs(asked.url.path):
                self._note(asked.response, is_watch=_is_watch(asked.url.query))

        async def failed(_: object, __: SimpleNamespace, asked: aiohttp.TraceRequestExceptionParams) -> None:
            if _is_of_jobs(asked.url.path):
                self._state.failed(f"{asked.url.path}: {asked.exception!r}")

        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(begun)
        trace.on_request_end.append(answered)
        trace.on_request_exception.append(failed)
        return trace

    def _note(self, response: aiohttp.ClientResponse, *, is_watch: bool) -> None:
        if response.status == 200 and is_watch:
            self.refused_by = ""
            self._state.opened()
        elif response.status == 200:
            self._state.answered()
            if self._state.opened_count > 0:
                self._main.call_soon_threadsafe(self._listed)
        else:
            error = refusal(f"GET {response.url.path}", response.status, response.reason or "", "refused")
            self.refused_by = type(error).__name__
            self._state.broke(error)


def _is_of_jobs(path: str) -> bool:
    return path.endswith(f"/{RLJOB_PLURAL}")


def _is_watch(query: Mapping[str, str]) -> bool:
    return "watch" in query


class _NoDifferences(kopf.DiffBaseStorage):
    """Storage by which kopf finds no difference: by default it copies each whole object twice to find out."""

    def build(self, **_: object) -> kopf.BodyEssence:
        """Nothing that could differ."""
        return kopf.BodyEssence()

    def fetch(self, **_: object) -> kopf.BodyEssence | None:
        """Nothing was remembered."""
        return None

    def store(self, **_: object) -> None:
        """Nothing is remembered."""
