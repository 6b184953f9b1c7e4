"""The operator process: election, watches, workers and coordinators, started and stopped in order.

Called by `python -m rljob_operator`. Each namespace that is served has watches of its own: one that is refused there
keeps no other from being served.
"""

import asyncio
import logging
import os
import resource
import signal
import socket
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import aiohttp
from kubernetes.aio import config as client_config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from rljob_api.cluster import LABEL_JOB
from rljob_api.serving.page_server import PageServer
from rljob_operator.build import Platform
from rljob_operator.cluster.claimed_turns import ClaimedTurns
from rljob_operator.cluster.coordinators import JobCoordinators
from rljob_operator.cluster.health_server import Checks, SideLoop, metrics_pages, probe_pages
from rljob_operator.cluster.job import OperatorContext
from rljob_operator.cluster.job_watch import JobWatch, in_cluster
from rljob_operator.cluster.reconcile import Reconciler
from rljob_operator.coordinator_client.cluster_transport import ProxyTransport, ServiceTransport
from rljob_operator.coordinator_client.link import CoordinatorTransport
from rljob_operator.kube.api import Api
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.capabilities import owned_kinds, platform_of, rehearse, until_another
from rljob_operator.kube.errors import LeadershipLost
from rljob_operator.kube.events import Events
from rljob_operator.kube.informer import Census, Informer
from rljob_operator.kube.job_secrets import SecretCensus
from rljob_operator.kube.kinds import CLAIMS, DEPLOYMENTS, PODS, SECRETS, STATEFUL_SETS, WORKLOADS
from rljob_operator.kube.lease import Lease
from rljob_operator.kube.namespace_claims import NamespaceClaims
from rljob_operator.kube.operator_metrics import Metrics, phase_of
from rljob_operator.kube.responses import MeteredConnector
from rljob_operator.kube.views import JobKey
from rljob_operator.kube.watch_state import WatchState
from rljob_operator.kube.work_queue import Workers
from rljob_operator.options import CoordinatorAccess, OperatorOptions

CONNECTIONS = 256
"""Watches and turns at the same time, and a long poll for each job where coordinators are reached by the proxy."""


KEEP_ALIVE_SECONDS = 60
"""A coordinator closes a connection that is idle for 75 s."""


CANCEL_SECONDS = 2.0
"""A task that has not ended by then is cancelled again."""


NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


_WHOLE = (DEPLOYMENTS, STATEFUL_SETS, CLAIMS, WORKLOADS)
"""Kinds of which more than the metadata is read."""


_log = logging.getLogger(__name__)


class OperatorProcess:
    """One replica.

    ended_well = await OperatorProcess(options).run()      # ValueError, OptionsRefused: the options cannot work
    """

    def __init__(self, options: OperatorOptions) -> None:
        self._options = options
        self._identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._metrics = Metrics()
        self._checks = Checks()
        self._lease: Lease | None = None
        self._lease_namespace = ""
        self._release = socket.gethostname()
        """Name of all replicas of this release, and of no other release."""
        if options.lease is not None:
            self._lease_namespace = options.lease.namespace or own_namespace()
            self._release = f"{self._lease_namespace}/{options.lease.name}"

    async def run(self) -> bool:
        """Until a signal (True), the loss of the lease, or another platform (False)."""
        stopping = asyncio.Event()
        _stop_by_signal(stopping)
        async with AsyncExitStack() as stack:
            side = await stack.enter_async_context(SideLoop())
            pages = probe_pages(self._checks)
            probes = await side.run(PageServer.open(pages, None, self._options.health_port))
            stack.push_async_callback(lambda: side.run(probes.close()))
            pages = metrics_pages(self._checks, self._metrics)
            metrics = await PageServer.open(pages, None, self._options.metrics_port)
            stack.push_async_callback(metrics.close)
            finding = asyncio.create_task(self._checks.keep_finding(), name="health")
            stack.push_async_callback(_cancel, {finding})
            client = await stack.enter_async_context(ApiClient(await _configuration()))
            return await self._lead(Api(client, self._metrics, self._may_write), side, stack, stopping)

    async def _lead(self, api: Api, side: SideLoop, stack: AsyncExitStack, stopping: asyncio.Event) -> bool:
        keeping: list[asyncio.Future[None]] = []
        if not await _unless(stopping, asyncio.create_task(self._rehearse(api))):
            return True
        if self._options.lease is not None:
            client = await side.run(_connected())
            stack.push_async_callback(lambda: side.run(cast(Any, client).close()))
            own_api = Api(client, self._metrics, self._may_write)
            hangs = self._checks.main_loop_hangs
            self._lease = lease = Lease(own_api, self._options.lease, self._lease_namespace, self._identity, hangs)
            if not await _unless(stopping, side.begin(lease.acquire())):
                return True
            stack.push_async_callback(lambda: side.run(lease.release()))
            keeping.append(side.begin(lease.keep()))
            stack.push_async_callback(_cancel, set(keeping))
        self._metrics.leader.set(1)
        # Asked only now: a replica may have waited for the lease for days, and the cluster may have got an API since.
        known = asyncio.create_task(platform_of(api, self._options))
        if not await _unless(stopping, known, *keeping):
            return self._verdict(set(), keeping, stopping)
        session = await stack.enter_async_context(_to_coordinators())
        return await self._work(api, known.result(), session, keeping, stopping)

    async def _rehearse(self, api: Api) -> None:
        """Whether the options can work on this cluster. Else OptionsRefused, before this replica is ready."""
        namespace = next(iter(self._options.namespaces), self._lease_namespace)
        if namespace:
            await rehearse(api, self._options, await platform_of(api, self._options), namespace)
        self._checks.rehearsed = True

    async def _work(
        self,
        api: Api,
        platform: Platform,
        session: aiohttp.ClientSession,
        keeping: list[asyncio.Future[None]],
        stopping: asyncio.Event,
    ) -> bool:
        cache = Cache(lambda key, urgency: workers.wake(key, urgency))
        coordinators = JobCoordinators(
            self._transport(api, session),
            wake=lambda key, urgency: workers.wake(key, urgency),
            metrics=self._metrics,
            time_of_day=api.clock,
        )
        world = OperatorContext(
            api, cache, coordinators, self._metrics, self._options, platform, self._identity, api.clock
        )
        claims = NamespaceClaims(api, self._release, cache)
        turns = ClaimedTurns(Reconciler(world), claims, cache, Events(api, self._identity, api.clock))
        workers: Workers[JobKey] = Workers(turns.turn, self._options.concurrency, self._metrics)
        namespaces: list[str | None] = [*self._options.namespaces] or [None]
        served = [_ServedNamespace(api, namespace, cache, self._metrics, platform) for namespace in namespaces]
        self._fill_checks(workers, served, cache, claims)
        lost: list[asyncio.Future[Any]] = [
            *keeping,
            asyncio.create_task(workers.lease_lost.wait(), name="write without the lease"),
        ]
        other = asyncio.create_task(until_another(api, self._options, platform, world.missed), name="platform")
        ends = {*lost, other, asyncio.create_task(stopping.wait(), name="signal")}
        tasks = {
            asyncio.create_task(workers.run(), name="workers"),
            asyncio.create_task(claims.run(), name="claims of namespaces"),
            asyncio.create_task(SecretCensus(api, cache).run(), name="census of Secrets"),
        }
        tasks |= {task for each in served for task in each.begin()}
        try:
            await _first_of({*tasks, *ends})
            if other.done() and not stopping.is_set():
                other.result()
                _log.error("the cluster has got an API that a job was refused for: this replica ends, and begins anew")
                return False
            return self._verdict(tasks, lost, stopping)
        finally:
            await _cancel({*tasks, *ends})
            await coordinators.close_all()

    def _verdict(
        self, tasks: set[asyncio.Task[Any]], lost: Sequence[asyncio.Future[Any]], stopping: asyncio.Event
    ) -> bool:
        if any(task.done() for task in lost):
            _log.error("this replica has lost the lease: it ends, and another one goes on")
            return False
        if stopping.is_set():
            return True
        ended = [task for task in tasks if task.done()]
        for task in ended:
            task.result()  # raises what it ended by
        raise RuntimeError(f"{', '.join(task.get_name() for task in ended)} ended, which none of them should")

    def _transport(self, api: Api, session: aiohttp.ClientSession) -> Callable[[JobKey, str], CoordinatorTransport]:
        if self._options.coordinator_access is CoordinatorAccess.PROXY:
            return partial(ProxyTransport, api)
        return partial(ServiceTransport, session, self._may_write)

    def _fill_checks(
        self, workers: Workers[JobKey], served: Sequence["_ServedNamespace"], cache: Cache, claims: NamespaceClaims
    ) -> None:
        def before_scrape() -> None:
            self._metrics.queue_depth.set(workers.depth())
            self._metrics.jobs.clear()
            for phase, count in Counter(phase_of(raw["status"]) for raw in cache.jobs()).items():
                self._metrics.jobs.labels(phase).set(count)
            self._metrics.contended.clear()
            for namespace in claims.contended():
                self._metrics.contended.labels(namespace).set(1)

        self._metrics.job_series.source = cache.jobs
        self._checks.lag = workers.lag
        self._checks.watches = [state for each in served for state in each.watch_states()]
        self._checks.censuses = [each.census.state for each in served]
        self._checks.leads = True
        self._checks.before_scrape = before_scrape
        self._checks.lease_problem = self._lease_problem

    def _may_write(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def _lease_problem(self) -> str | None:
        try:
            self._may_write()
        except LeadershipLost as error:
            return str(error)
        return None


class _ServedNamespace:
    """Watches that keep the cache current for one namespace, or for all (None)."""

    def __init__(self, api: Api, namespace: str | None, cache: Cache, metrics: Metrics, platform: Platform) -> None:
        self.namespace = namespace
        # Secrets are read by name: the right to list would show the operator every secret.
        owned = [kind for kind in owned_kinds(platform) if kind is not SECRETS]
        self.informers = [Informer(api, PODS, namespace, LABEL_JOB, cache, metrics)]
        self.informers += [
            Informer(api, kind, namespace, LABEL_JOB, cache, metrics, metadata_only=kind not in _WHOLE)
            for kind in owned
        ]
        self.census = Census(api, cache, namespace)
        self.jobs = JobWatch(api, namespace, cache, metrics, self.census.hasten)

    def watch_states(self) -> list[WatchState]:
        """States of all its watches."""
        return [*(informer.state for informer in self.informers), self.jobs.state]

    def begin(self) -> set[asyncio.Task[None]]:
        """Tasks that run until they are cancelled, each by its owner: a group would cancel what is in it once."""
        runs = {informer.state.name: informer.run() for informer in self.informers}
        runs |= {self.jobs.state.name: self._after_the_lists(self.jobs.run)}
        runs |= {self.census.state.name: self._after_the_lists(self.census.run)}
        return {asyncio.create_task(run, name=name) for name, run in runs.items()}

    async def _after_the_lists(self, run: Callable[[], Awaitable[None]]) -> None:
        """RLJobs are listed once everything that they are made of is known."""
        for informer in self.informers:
            await informer.synced.wait()
        await run()


def _to_coordinators() -> aiohttp.ClientSession:
    """Two connections to each are kept: one for the long poll, one for turns, which come every half minute."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # 1024 by default on some nodes: 500 jobs
    connector = MeteredConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS)
    no_cookies = aiohttp.DummyCookieJar()  # what one coordinator sets would be kept for ever
    return aiohttp.ClientSession(connector=connector, trust_env=False, auto_decompress=False, cookie_jar=no_cookies)


def _refuses_redirects() -> aiohttp.TraceConfig:
    """A Service that is asked through the API server's proxy could send the operator, with its token, to the API."""

    async def refuse(_session: object, _context: object, asked: aiohttp.TraceRequestRedirectParams) -> None:
        raise aiohttp.ClientError(f"{asked.method} {asked.url.path} was answered with a redirection")

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse)
    return trace


def own_namespace() -> str:
    """Where the operator itself runs."""
    given = os.environ.get("POD_NAMESPACE")
    if given:
        return given
    with suppress(OSError):
        return NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    raise ValueError("lease.namespace: null needs the variable POD_NAMESPACE. Set one of the two, or lease to null.")


def _stop_by_signal(stopping: asyncio.Event) -> None:
    """Both signals ask for an orderly end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)


async def _configuration() -> Configuration:
    configuration = Configuration()
    if in_cluster():
        client_config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    else:
        await client_config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    configuration.connection_pool_maxsize = CONNECTIONS
    configuration.retries = None
    configuration.trace_configs = [_refuses_redirects()]
    return configuration


async def _connected() -> ApiClient:
    """To the API server, with connections of the loop that runs this."""
    return ApiClient(await _configuration())


async def _unless(stopping: asyncio.Event, doing: asyncio.Future[Any], *ends: asyncio.Future[Any]) -> bool:
    """Whether this was done before the signal or one of the ends came. If not it is cancelled."""
    waiting = asyncio.create_task(stopping.wait())
    await asyncio.wait({doing, waiting, *ends}, return_when=asyncio.FIRST_COMPLETED)
    done = doing.done()
    if done:
        doing.result()
    await _cancel({doing, waiting})
    return done


async def _first_of(tasks: Collection[asyncio.Future[Any]]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def _cancel(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Until all have ended: a task may miss one cancellation in a library that waits by `wait_for` of Python 3.11."""
    left = tasks
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)  # what they raised is of no interest any more
