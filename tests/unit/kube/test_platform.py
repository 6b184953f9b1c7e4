"""What a cluster has beyond Kubernetes' own, as its API server says it: a group may be there without a kind."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from rljob_operator.build import Platform
from rljob_operator.kube import capabilities
from rljob_operator.kube.api import Api
from rljob_operator.kube.capabilities import owned_kinds, platform_of, until_another
from rljob_operator.kube.kinds import CLAIM_TEMPLATES, OWNED, POD_GROUPS, POD_MONITORS, WORKLOADS, Resource
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.options import OperatorOptions

OPTIONS = OperatorOptions.model_validate({"kueue": {"enabled": True}})
ONE_LOOK = 4
"""Questions: a group each."""


class ApiServer:
    """Serves these kinds; asked again in between it may serve others."""

    def __init__(self, *kinds: Resource | str) -> None:
        self.kinds = set(kinds)
        self.asked = 0

    async def discovery(self, request: web.Request) -> web.Response:
        self.asked += 1
        version = f"{request.match_info['group']}/{request.match_info['version']}"
        served = [kind.plural for kind in self.kinds if isinstance(kind, Resource) and kind.api_version == version]
        others = [kind for kind in self.kinds if isinstance(kind, str)]
        if not served and not others:
            raise web.HTTPNotFound
        return web.json_response({"resources": [{"name": name} for name in (*served, *others)]})


async def ask(server: ApiServer, question: str, options: OperatorOptions = OPTIONS) -> Platform | None:
    app = web.Application()
    app.router.add_get("/apis/{group}/{version}", server.discovery)
    async with TestServer(app) as running, ApiClient(Configuration(host=str(running.make_url("")))) as client:
        api = Api(client, Metrics(), lambda: None)
        if question == "now":
            return await platform_of(api, options)
        missed = asyncio.Event()
        waiting = asyncio.create_task(until_another(api, options, Platform(), missed))
        await asyncio.sleep(0.1)
        assert server.asked == 0, "nobody has missed anything yet"
        missed.set()
        async with asyncio.timeout(60):
            while server.asked <= ONE_LOOK:  # so that one look has been answered as a whole
                await asyncio.sleep(0.01)
        assert not waiting.done()
        server.kinds.add(POD_GROUPS)
        await asyncio.wait_for(waiting, 60)
        return None


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        pytest.param((), Platform(), id="neither"),
        pytest.param((POD_GROUPS,), Platform(pod_groups=True), id="groups of pods"),
        pytest.param((POD_MONITORS,), Platform(pod_monitors=True), id="monitors"),
        pytest.param((CLAIM_TEMPLATES,), Platform(device_claims=True), id="claims of devices"),
        pytest.param((WORKLOADS,), Platform(workloads=True), id="Kueue's Workloads"),
        pytest.param(("elasticquotas",), Platform(), id="the groups' neighbours alone"),
    ],
)
def test_the_platform_is_what_is_served(kinds: tuple[Resource | str, ...], found: Platform) -> None:
    assert asyncio.run(ask(ApiServer(*kinds), "now")) == found
    served = {
        POD_GROUPS: found.pod_groups,
        POD_MONITORS: found.pod_monitors,
        CLAIM_TEMPLATES: found.device_claims,
        WORKLOADS: found.workloads,
    }
    assert served.keys() - set(owned_kinds(found)) == {each for each, is_there in served.items() if not is_there}


def test_nothing_else_depends_on_the_platform() -> None:
    assert set(OWNED) - set(owned_kinds(Platform())) == {POD_GROUPS, POD_MONITORS, WORKLOADS, CLAIM_TEMPLATES}


def test_workloads_that_the_options_leave_out_are_not_there_for_jobs() -> None:
    assert asyncio.run(ask(ApiServer(WORKLOADS), "now", OperatorOptions())) == Platform()


def test_only_what_a_job_has_missed_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "RETRY_SECONDS", 0.02)
    asyncio.run(ask(ApiServer(), "another"))
