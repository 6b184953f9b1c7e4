"""The Secret of a job: drawn once, looked for now and then, made again of what is remembered, or lost."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from rljob_api.cluster import secret_name
from rljob_api.spec import RLJob
from rljob_operator.build import Owner
from rljob_operator.kube.api import Api
from rljob_operator.kube.errors import ApiConflict, ApiNotFound
from rljob_operator.kube.job_secrets import CHECK_SECONDS, WAITING_SECONDS, Absent, Held, JobSecret
from rljob_operator.kube.kinds import Resource
from rljob_operator.kube.ownership import Foreign
from rljob_operator.kube.views import JobKey, PodView, view_pod
from tests.unit.build.jobs import quickstart
from tests.unit.kube.objects import NOW_SECONDS, make_pod, running, waiting

KEY = JobKey("ns", "job")
OWNER = Owner(namespace="ns", uid="j1")
RUNS, STARTS = view_pod(make_pod(running())), view_pod(make_pod(waiting("ContainerCreating")))
YOUNG = replace(STARTS, created_at=NOW_SECONDS + 3)

Json = dict[str, Any]


class Secrets:
    """The API server's, and how often they were asked for."""

    def __init__(self) -> None:
        self.stored: dict[str, Json] = {}
        self.num_reads = 0

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        self.num_reads += 1
        if name not in self.stored:
            raise ApiNotFound(f"get {name}", 404, "NotFound", "")
        return self.stored[name]

    async def create(self, resource: Resource, namespace: str, body: Json) -> Json:
        name = body["metadata"]["name"]
        if name in self.stored:
            raise ApiConflict(f"create {name}", 409, "AlreadyExists", "")
        self.stored[name] = {**body, "metadata": {**body["metadata"], "uid": "s1", "resourceVersion": "1"}}
        return self.stored[name]


class Setting:
    """An operator and what it asks."""

    def __init__(self) -> None:
        self.api, self.now = Secrets(), NOW_SECONDS
        job = quickstart()
        self.job: RLJob = job.model_copy(update={"metadata": job.metadata.model_copy(update={"name": KEY.name})})
        self.restart()

    def restart(self) -> None:
        """Another operator, that remembers nothing."""
        self.secret = JobSecret(cast(Api, self.api), KEY, clock=lambda: self.now)

    def ask(self, *pods: PodView, has_begun: bool = True) -> Held | Absent | Foreign:
        return asyncio.run(self.secret.of(self.job, OWNER, pods, has_begun=has_begun))

    def make_another(self) -> Json:
        """Another's in the place of the job's, or the job's own without its owner."""
        found = self.api.stored[secret_name(KEY.name)]
        made = self.api.stored[secret_name(KEY.name)] = {
            **found,
            "metadata": {**found["metadata"], "ownerReferences": []},
        }
        return made

    def delete_by_hand(self) -> None:
        del self.api.stored[secret_name(KEY.name)]


def token_of(held: Held | Absent | Foreign) -> str:
    assert isinstance(held, Held)
    return held.token


def test_it_is_drawn_once_and_read_by_the_next_operator() -> None:
    context = Setting()
    token = token_of(context.ask(has_begun=False))
    assert token_of(context.ask(RUNS)) == token
    context.restart()

    assert token_of(context.ask(RUNS)) == token


@pytest.mark.parametrize(
    ("pod", "after"),
    [
        pytest.param(RUNS, CHECK_SECONDS, id="while all pods run"),
        pytest.param(STARTS, CHECK_SECONDS, id="while a pod waits that is older than the last look"),
        pytest.param(YOUNG, 3 + WAITING_SECONDS, id="sooner while a pod waits that was made since"),
    ],
)
def test_one_that_was_deleted_is_made_again_with_the_same_content(pod: PodView, after: float) -> None:
    context = Setting()
    token = token_of(context.ask(has_begun=False))
    before = context.api.stored[secret_name(KEY.name)]["data"]
    context.delete_by_hand()
    context.now += after - 1
    assert context.ask(pod) == Held(token)
    context.now += 1

    assert context.ask(pod) == Held(token, is_restored=True)
    assert context.api.stored[secret_name(KEY.name)]["data"] == before
    assert context.ask(pod) == Held(token)


def test_another_one_that_somebody_made_instead_is_not_taken_for_it() -> None:
    context = Setting()
    held = context.ask(has_begun=False)
    theirs = context.make_another()
    context.now += CHECK_SECONDS

    assert context.ask(RUNS) == context.ask(RUNS) == Foreign("Secret", secret_name(KEY.name))
    assert context.api.stored[secret_name(KEY.name)] is theirs
    context.delete_by_hand()
    assert context.ask(RUNS) == Held(token_of(held), is_restored=True)


def test_one_that_was_cut_off_from_an_earlier_job_is_named() -> None:
    context = Setting()
    context.ask(has_begun=False)
    context.make_another()
    context.restart()

    assert context.ask(has_begun=False) == Foreign("Secret", secret_name(KEY.name))
    assert context.ask(RUNS) == Foreign("Secret", secret_name(KEY.name))


def test_it_is_not_read_in_every_turn() -> None:
    context = Setting()
    context.ask(has_begun=False)
    read = context.api.num_reads
    for _ in range(100):
        context.ask(RUNS)
        context.now += CHECK_SECONDS / 50

    assert context.api.num_reads == read + 1


def test_what_no_one_remembers_is_lost_while_pods_run_and_drawn_again_when_they_are_gone() -> None:
    context = Setting()
    token = token_of(context.ask(has_begun=False))
    context.delete_by_hand()
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
