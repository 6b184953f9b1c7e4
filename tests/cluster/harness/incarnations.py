"""Short lives of the operator, within the test's process: each dies of a write, and the next knows nothing of it.

An incarnation is the operator's own reconciler, cache and watches against the real API server and the job's real
coordinator. Death is an exception that no one catches: from then on the incarnation can write nothing more, as if it
had been killed. It costs a tenth of a process's start, so that a job can be brought up with a death after each of its
writes.
"""

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from kubernetes.aio import config as client_config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from rljob_api.cluster import LABEL_JOB
from rljob_operator.build import Platform
from rljob_operator.cluster.coordinators import JobCoordinators
from rljob_operator.cluster.job import OperatorContext
from rljob_operator.cluster.reconcile import Reconciler
from rljob_operator.coordinator_client.cluster_transport import ProxyTransport
from rljob_operator.coordinator_client.link import CoordinatorError, CoordinatorLink, CoordinatorTransport
from rljob_operator.kube.api import Api
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.capabilities import owned_kinds
from rljob_operator.kube.errors import AdapterError, ApiNotFound
from rljob_operator.kube.informer import Informer
from rljob_operator.kube.kinds import PODS, RLJOBS, SECRETS
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.kube.views import JobKey
from rljob_operator.options import OperatorOptions
from tests.cluster.harness.kubectl import Object
from tests.cluster.harness.machine import workload_options

Holds = Callable[[Object | None], Any]
"""Something true where it holds of the RLJob (None: there is none)."""

_LOOK_SECONDS = 0.3

_ASK_SECONDS = 120


class Killed(BaseException):
    """The incarnation is over. No `except Exception` of the operator catches it."""


def survives_all(_: str) -> bool:
    """No write kills."""
    return True


@dataclass
class Spared:
    """So many writes of one name are survived; any other kills."""

    name: str
    times: int

    def __call__(self, what: str) -> bool:
        """Whether an incarnation survives this write of its."""
        if what != self.name or self.times == 0:
            return False
        self.times -= 1
        return True


@dataclass
class Incarnation:
    """What one incarnation wrote, and whether it lived to see what the test waits for."""

    survives: Callable[[str], bool]
    """Asked about every write that was carried out."""
    writes: list[str] = field(default_factory=list)
    reached: bool = False
    dead: bool = False

    @contextmanager
    def write(self, what: str) -> Iterator[None]:
        """Around a write: the dead write nothing, and a write that was their last is carried out but never answered."""
        if self.dead:
            raise Killed
        yield
        self.writes.append(what)
        if not self.survives(what):
            self.dead = True
            raise Killed


class _MortalApi(Api):
    """The API server, for as long as the incarnation lasts."""

    def __init__(self, client: ApiClient, metrics: Metrics, incarnation: Incarnation) -> None:
        super().__init__(client, metrics, lambda: None)
        self._incarnation = incarnation

    async def _write(self, verb: str, method: str, *rest: Any, **named: Any) -> Object:
        resource, path = rest[:2]
        subresource = path.rpartition("/")[2] if path.endswith("/status") else ""
        with self._incarnation.write(f"{verb} {resource.kind} {subresource}".strip()):
            return await super()._write(verb, method, *rest, **named)


class _MortalTransport:
    """To the coordinator, for as long as the incarnation lasts."""

    def __init__(self, transport: CoordinatorTransport, incarnation: Incarnation) -> None:
        self._transport = transport
        self._incarnation = incarnation

    async def send(self, method: str, path: str, body: str | None, timeout: float, most_bytes: int) -> bytes:
        if method == "GET":
            return await self._transport.send(method, path, body, timeout, most_bytes)
        with self._incarnation.write(f"{method} {path}"):
            return await self._transport.send(method, path, body, timeout, most_bytes)


class Incarnations:
    """The operator of one job, from incarnation to incarnation."""

    def __init__(self, kubeconfig: str, namespace: str, name: str) -> None:
        self._kubeconfig = kubeconfig
        self._key = JobKey(namespace, name)
        file = {"workloads": workload_options(), "namespaces": [namespace], "lease": None}
        self._options = OperatorOptions.model_validate({**file, "coordinatorAccess": "Proxy"})

    def die_at_every_write(self, holds: Holds, *, seconds: float) -> list[str]:
        """Lives until something holds of the RLJob; the writes that an incarnation died of, one an incarnation.

        An incarnation that dies of the same write as the one before is followed by one that survives this write once
        more: so progress that every new incarnation reports first does not keep them all from what comes after it.
        """
        deaths: list[str] = []

        async def incarnations(client: ApiClient) -> None:
            spared = Spared("", 0)
            while not (incarnation := await self._live(client, spared, holds)).reached:
                deaths.append(incarnation.writes[-1])
                spared = Spared(deaths[-1], _in_a_row(deaths) - 1)

        self._run(incarnations, seconds, deaths)
        return deaths

    def live(self, holds: Holds, *, seconds: float) -> list[str]:
        """One incarnation that nothing ends before something holds; what it wrote until then."""
        writes: list[str] = []

        async def one(client: ApiClient) -> None:
            writes.extend((await self._live(client, survives_all, holds)).writes)

        self._run(one, seconds, writes)
        return writes

    def ask(self, token: str, question: Callable[[CoordinatorLink], Awaitable[Any]]) -> None:
        """A question to the job's coordinator, with its token, as any operator could ask it; raises what it raises."""

        async def asked(client: ApiClient) -> None:
            api = Api(client, Metrics(), lambda: None)
            await question(CoordinatorLink(ProxyTransport(api, self._key, token)))

        self._run(asked, _ASK_SECONDS, [])

    def _run(self, work: Callable[[ApiClient], Coroutine[Any, Any, None]], seconds: float, reported: list[str]) -> None:
        async def run() -> None:
            configuration = Configuration()
            await client_config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=self._kubeconfig, client_configuration=configuration
            )
            configuration.retries = None
            async with ApiClient(configuration) as client:
                await asyncio.wait_for(work(client), seconds)

        try:
            asyncio.run(run())
        except TimeoutError:
            raise AssertionError(
                f"{self._key} did not come in {seconds:.0f} s to what the test waits for. Writes: {reported}"
            ) from None
        finally:
            _drop_connections()

    async def _live(self, client: ApiClient, survives: Callable[[str], bool], holds: Holds) -> Incarnation:
        incarnation, metrics = Incarnation(survives), Metrics()
        api = _MortalApi(client, metrics, incarnation)
        cache = Cache(lambda key, cause: None)
        informers = self._informers(api, cache, metrics)
        watches = [asyncio.create_task(informer.run()) for informer in informers]
        coordinators = JobCoordinators(
            lambda key, token: _MortalTransport(ProxyTransport(api, key, token), incarnation),
            lambda key, cause: None,
            metrics,
            api.clock,
        )
        world = OperatorContext(
            api, cache, coordinators, metrics, self._options, Platform(pod_monitors=False), "test", api.clock
        )
        try:
            await asyncio.gather(*(informer.synced.wait() for informer in informers))
            await self._work(Reconciler(world), api, cache, incarnation, holds)
        except Killed:
            return incarnation
        finally:
            for task in watches:
                task.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            await coordinators.close_all()
        return incarnation

    def _informers(self, api: Api, cache: Cache, metrics: Metrics) -> list[Informer]:
        kinds = [resource for resource in owned_kinds(Platform()) if resource is not SECRETS]
        namespace = self._key.namespace
        return [Informer(api, kind, namespace, LABEL_JOB, cache, metrics) for kind in (PODS, *kinds)]

    async def _work(
        self, reconciler: Reconciler, api: Api, cache: Cache, incarnation: Incarnation, holds: Holds
    ) -> None:
        while True:
            try:
                if holds(await self._read(api, cache)):
                    incarnation.reached = True
                    return
                again = await reconciler.turn(self._key)
            except (AdapterError, CoordinatorError):
                again = None  # as the operator's workers do: later once more
            due = again.in_seconds if again is not None else _LOOK_SECONDS
            await asyncio.sleep(min(max(0.02, due), _LOOK_SECONDS))

    async def _read(self, api: Api, cache: Cache) -> Object | None:
        """What kopf's watch does for the operator."""
        try:
            raw = await api.get(RLJOBS, self._key.namespace, self._key.name)
        except ApiNotFound:
            known = cache.job(self._key)
            if known is not None:
                cache.drop_job(known)
            return None
        cache.put_job(raw)
        return raw


def _in_a_row(deaths: list[str]) -> int:
    """How many of the last incarnations died of the same write."""
    return sum(1 for _ in takewhile(lambda death: death == deaths[-1], reversed(deaths)))


def _drop_connections() -> None:
    """Closes what lives have left open, as the system does for a process that was killed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
