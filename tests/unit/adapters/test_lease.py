"""The lease: when it may be taken, and when nothing may be written any more."""

import asyncio
import time
from typing import Any, cast

import pytest

from rljob_operator.adapters.api import Api
from rljob_operator.adapters.errors import ApiUnreachable, LeaseLost, refusal
from rljob_operator.adapters.lease import Lease
from rljob_operator.adapters.resources import Resource
from rljob_operator.adapters.side_loop import SideLoop
from rljob_operator.options import LeaseOptions
from tests.clock import Clock

OPTIONS = LeaseOptions(duration_seconds=15, renew_seconds=10, retry_seconds=2)


class LeaseServer:
    """The API server's part: one Lease, and writes that carry an older version are refused."""

    def __init__(self, spec: dict[str, Any] | None = None) -> None:
        self.lease: dict[str, Any] | None = None
        self.trouble: Exception | None = None
        self.delay = 0.0
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
    return asyncio.run(lease._try())


def may_write(lease: Lease) -> bool:
    try:
        lease.check()
    except LeaseLost:
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
    with pytest.raises(LeaseLost, match=r"not renewed for 10.1 s \(lease.renewSeconds 10\)"):
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


def test_of_two_that_take_it_at_once_one_is_refused() -> None:
    clock, server = Clock(), LeaseServer({"holderIdentity": "", "leaseDurationSeconds": 1})
    first, second = make_lease(server, clock), make_lease(server, clock, "other")

    async def both() -> list[bool]:
        server.delay = 0.01  # both have read before one writes
        return list(await asyncio.gather(first._try(), second._try()))

    assert sorted(asyncio.run(both())) == [False, True]


def test_what_is_released_is_taken_at_once() -> None:
    clock, server = Clock(), LeaseServer()
    leader, other = make_lease(server, clock), make_lease(server, clock, "other")
    assert take(leader)
    asyncio.run(leader.release())
    assert not may_write(leader)
    assert take(other)


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
