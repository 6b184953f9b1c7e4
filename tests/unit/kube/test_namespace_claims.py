"""Claims of namespaces: one release takes care of a namespace at a time, and the next one follows it by itself."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.kube.api import Api
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.errors import ApiUnreachable, refusal
from rljob_operator.kube.kinds import Resource
from rljob_operator.kube.lease import LONGEST_DURATION_SECONDS, LONGEST_IDENTITY
from rljob_operator.kube.namespace_claims import CLAIM, REFUSED_SECONDS, RENEW_AFTER_SECONDS, NamespaceClaims
from tests.clock import Clock

FORBIDDEN = refusal("get", 403, "Forbidden", "no right")
WEBHOOK = refusal("create", 500, "InternalError", "failed calling webhook")
BUSY = refusal("get", 429, "TooManyRequests", "later", retry_after=1.0)


class Leases:
    """The API server's part: a Lease for each namespace, and writes that carry an older version are refused."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, Any]] = {}
        self.trouble: Exception | None = None
        self.write_trouble: Exception | None = None
        self.requests = 0
        self.on_read: Callable[[], None] = lambda: None

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        self.requests += 1
        self.on_read()
        assert name == CLAIM.name
        if self.trouble is not None:
            raise self.trouble
        if namespace not in self.stored:
            raise refusal("get", 404, "NotFound", "")
        found = self.stored[namespace]
        return {part: dict(found[part]) for part in ("metadata", "spec") if part in found}

    async def claim(self, method: str, resource: Resource, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.write_trouble is not None:
            raise self.write_trouble
        namespace = body["metadata"]["namespace"]
        known = self.stored.get(namespace)
        if known is not None and body["metadata"].get("resourceVersion") != known["metadata"]["resourceVersion"]:
            raise refusal("update", 409, "Conflict", "")
        version = 1 if known is None else int(known["metadata"]["resourceVersion"]) + 1
        body["metadata"]["resourceVersion"] = str(version)
        self.stored[namespace] = body
        return body

    def holder(self, namespace: str) -> str:
        return str(self.stored[namespace]["spec"]["holderIdentity"])


class Release:
    """One release, with jobs in these namespaces, and a monotonic clock of its own."""

    def __init__(self, leases: Leases, name: str, *namespaces: str, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.woken: list[str] = []
        self.cache = Cache(lambda key, _: self.woken.append(key.namespace))
        for namespace in namespaces:
            metadata = {"namespace": namespace, "name": "job", "uid": namespace, "resourceVersion": "1"}
            self.cache.put_job({"metadata": metadata}, quietly=True)
        self.claims = NamespaceClaims(cast(Api, leases), name, self.cache, self.clock)

    def look(self) -> None:
        asyncio.run(self.claims.look())

    def holds(self, namespace: str) -> bool:
        return self.claims.held_for(namespace) > 0


def test_a_namespace_is_held_after_it_was_claimed_and_its_jobs_are_woken() -> None:
    release = Release(Leases(), "one", "a")
    assert not release.holds("a")
    release.look()
    assert release.holds("a")
    assert release.woken == ["a"]
    assert release.claims.held_for("a") == CLAIM.renew_seconds
    release.clock.now += CLAIM.renew_seconds
    assert not release.holds("a"), "what was not renewed for so long may soon be another's"


def test_each_release_has_what_it_alone_serves_and_the_first_has_what_both_do() -> None:
    leases = Leases()
    first, second = Release(leases, "one", "a", "both"), Release(leases, "two", "both", "b")
    first.look()
    second.look()
    assert (first.holds("a"), first.holds("both")) == (True, True)
    assert (second.holds("both"), second.holds("b")) == (False, True)
    assert first.claims.contended() == []
    assert second.claims.contended() == ["both"]
    assert second.claims.other_holder("both") == "one"
    assert second.woken == ["b", "both"], "the jobs of both are woken once"


def test_a_release_that_is_gone_is_followed_after_the_duration_and_the_one_that_comes_back_waits() -> None:
    leases, clock = Leases(), Clock()
    first, second = Release(leases, "one", "a", clock=clock), Release(leases, "two", "a", clock=clock)
    first.look()
    second.look()
    clock.now += CLAIM.duration_seconds
    second.look()
    assert not second.holds("a")
    clock.now += CLAIM.retry_seconds
    second.look()
    assert second.holds("a")
    assert second.claims.other_holder("a") == ""
    first.look()
    assert not first.holds("a")
    assert first.claims.other_holder("a") == "two"


def test_a_leader_s_successor_of_the_same_release_goes_on_at_once() -> None:
    leases = Leases()
    Release(leases, "one", "a").look()
    successor = Release(leases, "one", "a")
    successor.look()
    assert successor.holds("a")


def test_a_claim_that_another_one_has_taken_is_lost_as_soon_as_it_is_seen() -> None:
    leases = Leases()
    release = Release(leases, "one", "a")
    release.look()
    leases.stored["a"]["spec"]["holderIdentity"] = "two"
    release.clock.now += RENEW_AFTER_SECONDS
    release.look()
    assert not release.holds("a")


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_an_hour_of_skew_between_clocks_moves_no_claim(skew: float) -> None:
    leases = Leases()
    first, second = Release(leases, "one", "a"), Release(leases, "two", "a", clock=Clock(100_000.0 + skew))
    for _ in range(20):
        first.look()
        second.look()
        assert (first.holds("a"), second.holds("a")) == (True, False)
        first.clock.now += RENEW_AFTER_SECONDS
        second.clock.now += RENEW_AFTER_SECONDS


def test_where_its_lease_is_refused_a_namespace_is_served_unless_another_release_was_seen_there() -> None:
    leases = Leases()
    first, second, third = (Release(leases, name, "a") for name in ("one", "two", "three"))
    first.look()
    second.look()
    leases.trouble = FORBIDDEN
    for release in (second, third):
        release.clock.now += RENEW_AFTER_SECONDS
        release.look()
    assert not second.holds("a")
    assert third.holds("a")
    requests = leases.requests
    third.clock.now += REFUSED_SECONDS - 1
    third.look()
    assert leases.requests == requests, "a right that is missing is not asked for every few seconds"
    leases.trouble = None
    third.clock.now += 1
    third.look()
    assert not third.holds("a")


@pytest.mark.parametrize(
    ("read", "write", "is_served"),
    [
        pytest.param(FORBIDDEN, None, True, id="a right to read"),
        pytest.param(None, FORBIDDEN, True, id="a right to write, or a quota"),
        pytest.param(None, WEBHOOK, True, id="a webhook, which fails no read"),
        pytest.param(refusal("get", 503, "ServiceUnavailable", "starting"), None, False, id="a server that starts"),
        pytest.param(BUSY, None, False, id="a busy server, at the read"),
        pytest.param(None, BUSY, False, id="a busy server, at the write"),
        pytest.param(ApiUnreachable("no answer"), None, False, id="no answer"),
    ],
)
def test_a_new_leader_serves_a_namespace_without_its_lease_only_where_that_is_refused_for_good(
    read: Exception | None, write: Exception | None, *, is_served: bool
) -> None:
    leases = Leases()
    leases.trouble, leases.write_trouble = read, write
    release = Release(leases, "one", "a")
    release.look()
    assert release.holds("a") is is_served


def test_a_lost_answer_after_a_refusal_leaves_the_namespace_served() -> None:
    leases = Leases()
    release = Release(leases, "one", "a")
    leases.trouble = FORBIDDEN
    release.look()
    leases.trouble = ApiUnreachable("no answer")
    release.clock.now += REFUSED_SECONDS
    release.look()
    assert release.holds("a")


def test_what_a_tenant_writes_into_the_lease_of_a_namespace_changes_that_namespace_alone() -> None:
    """He may have the right to Leases there. The operator goes on, and takes over in an hour at the latest."""
    leases = Leases()
    release = Release(leases, "one", "a", "b")
    leases.stored["a"] = {"metadata": {"namespace": "a", "resourceVersion": "1"}}
    spec = {"holderIdentity": "x" * 10_000, "leaseDurationSeconds": 2**31 - 1}
    leases.stored["b"] = {"metadata": {"namespace": "b", "resourceVersion": "1"}, "spec": spec}
    release.look()
    assert (release.holds("a"), release.holds("b")) == (True, False)
    assert len(release.claims.other_holder("b")) == LONGEST_IDENTITY
    release.clock.now += LONGEST_DURATION_SECONDS + 1
    release.look()
    assert release.holds("b")


def test_a_turn_that_was_left_out_while_a_renewal_crossed_the_claims_end_is_made_up_for() -> None:
    leases = Leases()
    release = Release(leases, "one", "a")
    release.look()
    release.woken.clear()
    release.clock.now += CLAIM.renew_seconds - 0.1
    held = []

    def late() -> None:
        release.clock.now += 0.2
        held.append(release.holds("a"))

    leases.on_read = late
    release.look()
    assert held == [False]
    assert release.woken == ["a"]
    leases.on_read = lambda: None
    release.clock.now += RENEW_AFTER_SECONDS
    release.look()
    assert release.woken == ["a"], "a renewal in time wakes no job"


def test_an_api_server_that_does_not_answer_takes_no_claim_before_its_time() -> None:
    leases = Leases()
    release = Release(leases, "one", "a")
    release.look()
    leases.trouble = ApiUnreachable("no answer")
    release.clock.now += CLAIM.renew_seconds - 1
    release.look()
    assert release.holds("a")
    release.clock.now += 1
    release.look()
    assert not release.holds("a")


def test_a_namespace_without_jobs_is_not_claimed_any_more() -> None:
    leases = Leases()
    release = Release(leases, "one", "a")
    release.look()
    release.cache.drop_job({"metadata": {"namespace": "a", "name": "job", "uid": "a"}})
    release.clock.now += RENEW_AFTER_SECONDS
    requests = leases.requests
    release.look()
    assert leases.requests == requests
    assert not release.holds("a")


@given(st.lists(st.tuples(st.sampled_from(["one", "two", "three"]), st.floats(0, 120)), max_size=40))
def test_two_releases_never_hold_a_namespace_together(steps: list[tuple[str, float]]) -> None:
    """Whichever of them looks, sleeps or is gone, and for however long."""
    leases, clock = Leases(), Clock()
    releases = {name: Release(leases, name, "a", clock=clock) for name in ("one", "two", "three")}
    for name, seconds in steps:
        clock.now += seconds
        releases[name].look()
        assert sum(release.holds("a") for release in releases.values()) <= 1
