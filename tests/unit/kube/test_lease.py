"""The lease: when it may be taken, and when nothing may be written any more."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from rljob_operator.cluster.health_server import SideLoop
from rljob_operator.kube.api import Api
from rljob_operator.kube.errors import ApiUnreachable, LeadershipLost, refusal
from rljob_operator.kube.kinds import Resource
from rljob_operator.kube.lease import Lease
from rljob_operator.options import LeaseOptions
from tests.clock import Clock

OPTIONS = LeaseOptions(duration_seconds=15, renew_seconds=10, retry_seconds=2)


class LeaseServer:
    """The API server's part: one Lease, and writes that carry an older version are refused."""

    def __init__(self, spec: dict[str, Any] | None = None) -> None:
        self.lease: dict[str, Any] | None = None
        self.trouble: Exception | None = None
        self.delay = 0.0
        self.on_write: Callable[[], None] = lambda: None
        if spec is not None:
            self.lease = {"metadata": {"name": "rljob-operator", "resourceVersion": "1"}, "spec": spec}

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        await asyncio.sleep(self.delay)
        if self.trouble is not None:
            raise self.trouble
        if self.lease is None:
            raise refusal("get", 404, "NotFound", "")
        return {"metadata": dict(self.lease["metadata"]), "spec": dict(self.lease["spec"])}

    async def claim(self, method: str, resource: Resource, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.on_write()
        if self.lease is not None:
            version = self.lease["metadata"]["resourceVersion"]
            if method == "POST" or body["metadata"]["resourceVersion"] != version:
                raise refusal("update", 409, "Conflict", "")
            body["metadata"]["resourceVersion"] = str(int(version) + 1)
        else:
            body["metadata"]["resourceVersion"] = "1"
        self.lease = body
        return body


def never() -> bool:
    return False


def make_lease(server: LeaseServer, clock: Clock, who: str = "me", options: LeaseOptions = OPTIONS) -> Lease:
    return Lease(cast(Api, server), options, "ns", who, never, clock)


def take(lease: Lease) -> bool:
    return asyncio.run(lease.attempt())


def may_write(lease: Lease) -> bool:
    try:
        lease.check()
    except LeadershipLost:
        return False
    return True


def test_a_leader_that_was_paused_may_write_nothing_whatever_it_believes() -> None:
    clock = Clock()
    lease = make_lease(LeaseServer(), clock)
    assert not may_write(lease)
    assert take(lease)
    clock.now += 9.9
    assert may_write(lease)

    clock.now += 0.2
    with pytest.raises(LeadershipLost, match=r"not renewed for 10.1 s \(lease.renewSeconds 10\)"):
        lease.check()


def test_another_one_takes_over_only_after_it_has_watched_for_the_whole_duration() -> None:
    clock, server = Clock(), LeaseServer()
    leader, other = make_lease(server, clock), make_lease(server, clock, "other")
    assert take(leader)
    assert not take(other)
    clock.now += 14
    assert not take(other)
    assert take(leader), "renewed late, but nobody has taken it"
    clock.now += 14
    assert not take(other), "the renewal starts its time anew"
    clock.now += 16
    assert take(other)
    assert not take(leader)
    assert not may_write(leader)
    assert server.lease is not None
    assert server.lease["spec"]["leaseTransitions"] == 2


@pytest.mark.parametrize("renew_time", ["2000-01-01T00:00:00.000000Z", "2100-01-01T00:00:00.000000Z"])
def test_what_the_clock_of_the_leader_states_moves_no_takeover(renew_time: str) -> None:
    spec = {"holderIdentity": "leader", "leaseDurationSeconds": 15, "renewTime": renew_time, "leaseTransitions": 1}
    clock, server = Clock(), LeaseServer(spec)
    other = make_lease(server, clock)
    assert not take(other)
    clock.now += 14
    assert not take(other)
    clock.now += 2
    assert take(other)


def test_a_slow_answer_makes_no_lease_longer() -> None:
    clock, server = Clock(), LeaseServer()

    def answer_late() -> None:
        clock.now += 4

    server.on_write = answer_late
    lease = make_lease(server, clock)
    assert take(lease)
    assert lease.age() == 4


def test_a_lease_that_is_not_renewed_in_time_is_retained_no_longer() -> None:
    server = LeaseServer()
    brief = LeaseOptions(duration_seconds=0.4, renew_seconds=0.2, retry_seconds=0.1)
    lease = Lease(cast(Api, server), brief, "ns", "me", never)
    assert take(lease)
    assert server.lease is not None
    assert server.lease["spec"]["leaseDurationSeconds"] == 1, "whole seconds, and never less than it lasts"
    server.trouble = ApiUnreachable("no answer")
    asyncio.run(asyncio.wait_for(lease.keep(), 10))
    assert not may_write(lease)


def test_of_two_that_take_it_at_once_one_is_refused() -> None:
    clock, server = Clock(), LeaseServer({"holderIdentity": "", "leaseDurationSeconds": 1})
    first, second = make_lease(server, clock), make_lease(server, clock, "other")

    async def both() -> list[bool]:
        server.delay = 0.01  # both have read before one writes
        return list(await asyncio.gather(first.attempt(), second.attempt()))

    assert sorted(asyncio.run(both())) == [False, True]


def test_what_is_released_is_taken_at_once() -> None:
    clock, server = Clock(), LeaseServer()
    leader, other = make_lease(server, clock), make_lease(server, clock, "other")
    assert take(leader)
    asyncio.run(leader.release())
    assert not may_write(leader)
    assert take(other)


def test_what_another_one_has_taken_is_not_released() -> None:
    clock, server = Clock(), LeaseServer()
    leader = make_lease(server, clock)
    assert take(leader)
    assert server.lease is not None
    server.lease["spec"]["holderIdentity"] = "other"
    asyncio.run(leader.release())
    assert server.lease["spec"]["holderIdentity"] == "other"


def test_no_answer_is_no_lease() -> None:
    clock, server = Clock(), LeaseServer()
    server.trouble = ApiUnreachable("no answer")
    assert not take(make_lease(server, clock))

    server.trouble, server.delay = None, 60
    brief = LeaseOptions(duration_seconds=0.4, renew_seconds=0.2, retry_seconds=0.1)
    assert not take(make_lease(server, clock, options=brief))


def test_a_busy_main_loop_delays_no_renewal() -> None:
    options = LeaseOptions(duration_seconds=3, renew_seconds=2, retry_seconds=0.1)
    lease = Lease(cast(Api, LeaseServer()), options, "ns", "me", never)

    async def lead() -> None:
        async with SideLoop() as side:
            await side.run(lease.acquire())
            keeping = side.begin(lease.keep())
            time.sleep(3)
            lease.check()
            assert not keeping.done()
            keeping.cancel()
            await asyncio.wait([keeping])  # it is cancelled there only once this loop has turned
            await side.run(lease.release())
        assert not may_write(lease)

    asyncio.run(lead())


def test_a_lease_whose_main_loop_hangs_is_renewed_no_more() -> None:
    clock, server = Clock(), LeaseServer()
    lease = Lease(cast(Api, server), OPTIONS, "ns", "me", lambda: clock.now >= 5, clock)
    assert take(lease)
    clock.now += 5
    asyncio.run(asyncio.wait_for(lease.keep(), 10))
    assert may_write(lease), "what it held it holds until its time is over"
    clock.now += 5
    assert not may_write(lease)
