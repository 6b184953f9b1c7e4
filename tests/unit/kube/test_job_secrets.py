"""The Secret of a job: drawn once, looked for now and then, made again of what is remembered, or lost."""

import asyncio
from typing import Any, cast

import pytest

from rljob_api.cluster import secret_copy_name, secret_name
from rljob_api.spec import RLJob
from rljob_operator.build import Owner
from rljob_operator.kube.api import Api
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.errors import ApiConflict, ApiNotFound, ApiRefused
from rljob_operator.kube.job_secrets import COPY_AGAIN_SECONDS, Absent, Held, JobSecret, SecretCensus
from rljob_operator.kube.kinds import Resource
from rljob_operator.kube.ownership import Foreign
from rljob_operator.kube.views import JobKey, PodView, view_pod
from tests.unit.build.jobs import quickstart
from tests.unit.kube.objects import NOW_SECONDS, make_pod, running, waiting

KEY = JobKey("ns", "job")
OWNER = Owner(namespace="ns", uid="j1")
RUNS, STARTS = view_pod(make_pod(running())), view_pod(make_pod(waiting("ContainerCreating")))

Json = dict[str, Any]


class Secrets:
    """The API server's, and how often they were asked for."""

    def __init__(self) -> None:
        self.stored: dict[str, Json] = {}
        self.num_reads = 0
        self.num_made = 0
        self.refused = ""
        """Name of one that a quota refuses."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        self.num_reads += 1
        if name not in self.stored:
            raise ApiNotFound(f"get {name}", 404, "NotFound", "")
        return self.stored[name]

    async def get_metadata(self, resource: Resource, namespace: str, name: str) -> Json:
        return {"metadata": (await self.get(resource, namespace, name))["metadata"]}

    async def create(self, resource: Resource, namespace: str, body: Json) -> Json:
        name = body["metadata"]["name"]
        if name == self.refused:
            raise ApiRefused(f"create {name}", 403, "Forbidden", "exceeded quota: q")
        if name in self.stored:
            raise ApiConflict(f"create {name}", 409, "AlreadyExists", "")
        self.num_made += 1
        numbers = {"uid": f"s{self.num_made}", "resourceVersion": str(self.num_made)}
        self.stored[name] = {**body, "metadata": {**body["metadata"], **numbers}}
        return self.stored[name]


NAME, COPY = secret_name(KEY.name), secret_copy_name(KEY.name)


class Setting:
    """An operator and what it asks."""

    def __init__(self) -> None:
        self.api, self.now = Secrets(), NOW_SECONDS
        self.woken = 0
        job = quickstart()
        self.job: RLJob = job.model_copy(update={"metadata": job.metadata.model_copy(update={"name": KEY.name})})
        self.restart()

    def restart(self) -> None:
        """Another operator, that remembers nothing."""
        self.cache = Cache(lambda key, urgency: self.wake())
        metadata = {"namespace": KEY.namespace, "name": KEY.name, "uid": OWNER.uid, "resourceVersion": "1"}
        self.cache.put_job({"metadata": metadata})
        self.secret = JobSecret(cast(Api, self.api), self.cache, KEY, clock=lambda: self.now)
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def ask(self, *pods: PodView, has_begun: bool = True) -> Held | Absent | Foreign:
        return asyncio.run(self.secret.of(self.job, OWNER, pods, has_begun=has_begun))

    def count(self) -> None:
        """What the census finds of this job."""
        asyncio.run(SecretCensus(cast(Api, self.api), self.cache).look(KEY))

    def make_another(self, **changes: Any) -> Json:
        """Another's in the place of the job's, or the job's own without its owner, or with other contents."""
        found = self.api.stored[NAME]
        metadata = {**found["metadata"], "uid": "s99", "ownerReferences": []}
        made = self.api.stored[NAME] = {**found, "metadata": metadata, **changes}
        return made

    def delete_by_hand(self, *names: str) -> None:
        for name in names or (NAME,):
            del self.api.stored[name]


def token_of(held: Held | Absent | Foreign) -> str:
    assert isinstance(held, Held)
    return held.token


def test_it_is_drawn_once_and_read_by_the_next_operator() -> None:
    context = Setting()
    token = token_of(context.ask(has_begun=False))
    assert token_of(context.ask(RUNS)) == token
    context.restart()

    assert token_of(context.ask(RUNS)) == token


@pytest.mark.parametrize("pod", [pytest.param(RUNS, id="pods run"), pytest.param(STARTS, id="a pod starts")])
def test_one_that_was_deleted_is_made_again_with_the_same_content(pod: PodView) -> None:
    context = Setting()
    token = token_of(context.ask(has_begun=False))
    before = context.api.stored[NAME]["data"]
    context.delete_by_hand()
    assert context.ask(pod) == Held(token), "no one has found it yet"
    context.count()
    assert context.woken == 1

    assert context.ask(pod) == Held(token, is_restored=True)
    assert context.api.stored[NAME]["data"] == before
    assert context.ask(pod) == Held(token)


@pytest.mark.parametrize("pods", [pytest.param((RUNS,), id="pods run"), pytest.param((), id="none is left")])
def test_it_outlives_an_operator_that_dies_before_it_is_made_again(pods: tuple[PodView, ...]) -> None:
    context = Setting()
    token = token_of(context.ask(has_begun=False))
    context.delete_by_hand()
    context.restart()

    assert context.ask(*pods) == Held(token, is_restored=True)


def test_a_copy_that_was_deleted_is_made_again_by_the_next_operator() -> None:
    context = Setting()
    token = token_of(context.ask(has_begun=False))
    context.delete_by_hand(COPY)
    context.restart()
    context.ask(RUNS)

    assert context.api.stored[COPY]["data"] == context.api.stored[NAME]["data"]
    context.delete_by_hand(NAME, COPY)
    context.count()
    assert context.ask(RUNS) == Held(token, is_restored=True)
    assert set(context.api.stored) == {NAME, COPY}


def test_a_copy_that_is_refused_keeps_nothing_and_is_asked_for_again() -> None:
    context = Setting()
    context.api.refused = COPY
    token = token_of(context.ask(has_begun=False))
    context.api.refused = ""
    assert context.ask(RUNS) == Held(token)
    assert COPY not in context.api.stored
    context.now += COPY_AGAIN_SECONDS
    assert context.ask(RUNS) == Held(token)
    assert COPY in context.api.stored


def test_another_one_that_somebody_made_instead_is_not_taken_for_it() -> None:
    context = Setting()
    held = context.ask(has_begun=False)
    theirs = context.make_another()
    context.count()

    assert context.ask(RUNS) == context.ask(RUNS) == Foreign("Secret", NAME)
    assert context.api.stored[NAME] is theirs
    context.delete_by_hand()
    assert context.ask(RUNS) == Held(token_of(held), is_restored=True)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(
    "data", [pytest.param({"token": "eA==", "redis-password": "eA=="}, id="other"), pytest.param({}, id="nothing")]
)
def test_one_with_another_content_is_named_and_not_given_to_pods(data: Json, is_restarted: bool) -> None:
    context = Setting()
    held = context.ask(has_begun=False)
    owner = context.api.stored[NAME]["metadata"]["ownerReferences"]
    context.make_another(data=data)
    context.api.stored[NAME]["metadata"]["ownerReferences"] = owner
    context.restart() if is_restarted else context.count()

    assert context.ask(RUNS) == Foreign("Secret", NAME)
    context.delete_by_hand()
    assert context.ask(RUNS) == Held(token_of(held), is_restored=True)


def test_one_that_was_cut_off_from_an_earlier_job_is_named() -> None:
    context = Setting()
    context.ask(has_begun=False)
    context.make_another()
    context.restart()

    assert context.ask(has_begun=False) == Foreign("Secret", NAME)
    assert context.ask(RUNS) == Foreign("Secret", NAME)


def test_it_is_not_read_in_any_turn_while_it_is_there() -> None:
    context = Setting()
    context.ask(has_begun=False)
    read = context.api.num_reads
    for _ in range(100):
        context.ask(RUNS)
        context.now += 10

    assert context.api.num_reads == read
    context.count()
    assert (context.api.num_reads, context.woken) == (read + 1, 0)


def test_one_that_is_being_deleted_is_the_jobs_until_it_is_gone() -> None:
    context = Setting()
    token = token_of(context.ask(has_begun=False))
    context.api.stored[NAME]["metadata"]["deletionTimestamp"] = "2026-11-01T00:00:00Z"
    context.restart()
    assert context.ask(RUNS) == Held(token)
    context.delete_by_hand()
    context.count()
    assert context.ask(RUNS) == Held(token, is_restored=True)


def test_what_no_one_has_any_more_is_lost_while_pods_run_and_drawn_again_when_they_are_gone() -> None:
    context = Setting()
    token = token_of(context.ask(has_begun=False))
    context.delete_by_hand(NAME, COPY)
    context.restart()

    assert context.ask(RUNS) is Absent.LOST
    assert not context.api.stored, "another content would lock the running pods out for good"
    assert token_of(context.ask()) != token


def test_a_new_job_waits_until_the_pods_of_an_earlier_one_are_gone() -> None:
    context = Setting()
    assert context.ask(RUNS, has_begun=False) is Absent.EARLIER_PODS
    assert isinstance(context.ask(has_begun=False), Held)


def test_the_secret_of_an_earlier_job_is_not_used() -> None:
    context = Setting()
    context.ask(has_begun=False)
    context.restart()
    later = Owner(namespace="ns", uid="j2")

    assert asyncio.run(context.secret.of(context.job, later, (), has_begun=False)) is Absent.EARLIER_PODS
