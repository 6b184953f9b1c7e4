"""In which order a replica of the operator begins: its options are tried, it leads, it asks what the cluster has."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, cast

import aiohttp
import pytest

from rljob_operator.build import Platform
from rljob_operator.cluster import process
from rljob_operator.cluster.health_server import SideLoop
from rljob_operator.cluster.process import OperatorProcess
from rljob_operator.kube.api import Api
from rljob_operator.kube.errors import LeadershipLost
from rljob_operator.options import OperatorOptions
from tests.unit.kube.fake_api import ApiOfAnswers

GROUPS = Platform(pod_groups=True)


class Replica:
    """One that is given the lease long after its start, on a cluster that gets an API meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, keeps_the_lease: bool = True, answers: bool = True) -> None:
        monkeypatch.setenv("POD_NAMESPACE", "rljob")
        self.process = OperatorProcess(OperatorOptions())
        self.cluster = Platform()
        self.steps: list[str] = []
        self.worked_on: list[Platform] = []
        replica = self

        class LateLease:
            def __init__(self, *_: object) -> None:
                pass

            async def acquire(self) -> None:
                replica.steps.append(f"lease; unready: {replica.process._checks.unready()}")
                replica.cluster = GROUPS

            async def keep(self) -> None:
                if keeps_the_lease:
                    await asyncio.Event().wait()

            async def release(self) -> None:
                replica.steps.append("release")

            def check(self) -> None:
                raise LeadershipLost("not renewed")

        async def rehearse(api: Api, options: OperatorOptions, platform: Platform, namespace: str) -> None:
            self.steps.append(f"rehearse in {namespace}; unready: {len(self.process._checks.unready())}")

        async def platform_of(api: Api, options: OperatorOptions) -> Platform:
            if not answers and self.cluster == GROUPS:
                await asyncio.Event().wait()
            return self.cluster

        async def work(api: Api, platform: Platform, *_: object) -> bool:
            self.worked_on.append(platform)
            return True

        class Session:
            async def close(self) -> None:
                replica.steps.append("its session is closed")

        async def connected() -> Session:
            return Session()

        monkeypatch.setattr(process, "Lease", LateLease)
        monkeypatch.setattr(process, "_connected", connected)
        monkeypatch.setattr(process, "rehearse", rehearse)
        monkeypatch.setattr(process, "platform_of", platform_of)
        monkeypatch.setattr(self.process, "_work", work)

    def leads(self) -> bool:
        async def run() -> bool:
            async with AsyncExitStack() as stack:
                side = await stack.enter_async_context(SideLoop())
                return await self.process._lead(cast(Any, None), side, stack, asyncio.Event())

        return asyncio.run(asyncio.wait_for(run(), 10))


def test_what_the_cluster_has_is_asked_once_the_replica_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(monkeypatch)
    assert replica.leads()
    assert replica.steps == ["rehearse in rljob; unready: 1", "lease; unready: []", "release", "its session is closed"]
    assert replica.worked_on == [GROUPS]


def test_a_replica_that_loses_the_lease_before_the_cluster_answers_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(monkeypatch, keeps_the_lease=False, answers=False)
    assert not replica.leads()
    assert replica.worked_on == []


def test_a_replica_asks_its_lease_before_every_write(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(monkeypatch)
    replica.process._may_write()  # without a lease, as one that is alone
    assert replica.leads()
    with pytest.raises(LeadershipLost):
        replica.process._may_write()


def test_a_replica_that_loses_the_lease_at_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAMESPACE", "rljob")

    async def work() -> bool:
        retained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        retained.set_result(None)  # `Lease.keep` has returned
        api, session = cast(Api, ApiOfAnswers({})), cast(aiohttp.ClientSession, None)
        return await OperatorProcess(OperatorOptions())._work(api, GROUPS, session, [retained], asyncio.Event())

    assert not asyncio.run(asyncio.wait_for(work(), 30))
