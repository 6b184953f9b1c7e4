"""The names of a job's objects: what is made before anything runs, and what is only looked for, once."""

import asyncio
from typing import Any, cast

import pytest

from rljob_api.status import RLJobStatus
from rljob_operator.build import Owner, Platform, manifests
from rljob_operator.kube.api import Api
from rljob_operator.kube.apply import ApplyOutcome, JobObjects
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.errors import refusal
from rljob_operator.kube.kinds import Resource
from rljob_operator.kube.ownership import JOB_KIND
from rljob_operator.kube.views import Controller, JobKey, view_owned
from rljob_operator.options import OperatorOptions
from tests.unit.build.jobs import rich

Json = dict[str, Any]
KEY, UID = JobKey("team", "rich"), "u1"
WANTED = manifests(rich(), Owner("team", UID), RLJobStatus(), OperatorOptions(), Platform())
VOLUME = ("PersistentVolumeClaim", "data-rich-control-0")
NAMES = [(each["kind"], each["metadata"]["name"]) for each in WANTED]
WORKLOADS = [each for each in NAMES if each[0] in ("Deployment", "StatefulSet")]


class Server:
    """Has these objects of no one, or of this controller, and no others yet."""

    def __init__(self, *there: tuple[str, str], controller: Controller | None = None, deny_reads: bool = False) -> None:
        self.there = {*there}
        self.controller = controller
        self.deny_reads = deny_reads
        self.made: list[tuple[str, str]] = []
        self.reads: list[tuple[str, str]] = []

    async def apply_new(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        if (body["kind"], name) in self.there:
            raise refusal("PATCH", 409, "Conflict", "")
        self.made.append((body["kind"], name))
        return {**body, "metadata": {**body["metadata"], "uid": f"uid-of-{name}", "resourceVersion": "1"}}

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        self.reads.append((resource.kind, name))
        if self.deny_reads:
            raise refusal("GET", 403, "Forbidden", f"cannot get resource {resource.plural}")
        if (resource.kind, name) not in self.there:
            raise refusal("GET", 404, "NotFound", "")
        owner = self.controller
        references = [] if owner is None else [_reference(owner)]
        return {"metadata": {"name": name, "uid": "o1", "resourceVersion": "7", "ownerReferences": references}}


def _reference(owner: Controller) -> Json:
    kind, _, group = owner.kind.partition(".")
    return {"apiVersion": f"{group}/v1", "kind": kind, "name": owner.name, "uid": owner.uid, "controller": True}


def claimed(server: Server, cache: Cache, *, has_begun: bool = False) -> ApplyOutcome:
    objects = JobObjects(cast(Api, server), cache, KEY, UID)
    return asyncio.run(objects.claim(objects.difference(WANTED), has_begun=has_begun))


def make_cache() -> Cache:
    return Cache(lambda key, cause: None)


def test_what_has_no_pods_is_made_and_what_has_pods_is_only_looked_for() -> None:
    server, cache = Server(), make_cache()

    assert claimed(server, cache) == ApplyOutcome()
    assert server.made == [each for each in NAMES if each not in WORKLOADS]
    assert sorted(server.reads) == sorted([*WORKLOADS, VOLUME])


def test_what_is_there_is_not_looked_for_again() -> None:
    server, cache = Server(), make_cache()
    claimed(server, cache)
    for each in WANTED:
        made = {**each, "metadata": {**each["metadata"], "uid": "o1", "resourceVersion": "1"}}
        cache.put_owned(KEY, view_owned(each["kind"], made))
    again = Server()

    assert claimed(again, cache) == ApplyOutcome()
    assert (again.made, again.reads) == ([], [])


@pytest.mark.parametrize(
    "theirs",
    [
        pytest.param(("PersistentVolumeClaim", "rich-checkpoints"), id="a volume"),
        pytest.param(("Deployment", "rich-advantages"), id="the last of the Deployments"),
        pytest.param(("StatefulSet", "rich-control"), id="a StatefulSet"),
        pytest.param(VOLUME, id="a volume that a StatefulSet would take"),
    ],
)
def test_what_somebody_else_has_is_named(theirs: tuple[str, str]) -> None:
    server = Server(theirs)

    assert [(each.kind, each.name) for each in claimed(server, make_cache()).taken] == [theirs]
    assert not set(WORKLOADS) & set(server.made)


@pytest.mark.parametrize("has_begun", [False, True])
def test_the_volume_of_an_earlier_job_goes_before_there_is_a_statefulset(has_begun: bool) -> None:
    """It would begin with the control state of the other."""
    server = Server(VOLUME, controller=Controller("StatefulSet.apps", "rich-control", "s0"))

    outcome = claimed(server, make_cache(), has_begun=has_begun)

    assert outcome == ApplyOutcome(waits=True, held_back=frozenset({("StatefulSet", "rich-control")}))


def test_the_volume_of_a_job_that_has_begun_is_its_own() -> None:
    server = Server(VOLUME)

    assert claimed(server, make_cache(), has_begun=True) == ApplyOutcome()


def test_the_volume_of_a_statefulset_that_is_there_is_its_own() -> None:
    """Someone has taken its label away, so that no watch reports it."""
    server = Server(VOLUME, ("StatefulSet", "rich-control"), controller=Controller(JOB_KIND, "rich", UID))

    assert claimed(server, make_cache(), has_begun=True).held_back == frozenset()


def test_without_the_right_to_read_nothing_with_pods_is_made() -> None:
    outcome = claimed(Server(deny_reads=True), make_cache())

    assert {(each.kind, each.name) for each in outcome.refusals} == {*WORKLOADS, VOLUME}
