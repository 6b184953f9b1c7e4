"""The names of a job's objects: what is made before anything runs, and what is only looked for, once."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from rljob_api.status import RLJobStatus
from rljob_operator.build import ClaimedBy, FoundClaims, Owner, Platform, manifests
from rljob_operator.kube.api import Api
from rljob_operator.kube.apply import ApplyOutcome, JobObjects
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.errors import refusal
from rljob_operator.kube.kinds import Resource
from rljob_operator.kube.ownership import JOB_KIND, Foreign
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


def claimed(server: Server, cache: Cache, *, has_begun: bool = False, wanted: Sequence[Json] = WANTED) -> ApplyOutcome:
    objects = JobObjects(cast(Api, server), cache, KEY, UID)
    return asyncio.run(objects.claim(objects.difference(wanted), has_begun=has_begun))


def make_cache() -> Cache:
    return Cache(lambda key, cause: None)


def test_what_has_no_pods_is_made_and_what_has_pods_is_only_looked_for() -> None:
    server, cache = Server(), make_cache()

    assert claimed(server, cache) == ApplyOutcome()
    assert server.made == [each for each in NAMES if each not in WORKLOADS]
    assert sorted(server.reads) == sorted(WORKLOADS)


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
        pytest.param(VOLUME, id="the volume of the control Redis"),
    ],
)
def test_what_somebody_else_has_is_named(theirs: tuple[str, str]) -> None:
    server = Server(theirs)

    assert [(each.kind, each.name) for each in claimed(server, make_cache()).taken] == [theirs]
    assert not set(WORKLOADS) & set(server.made)


SET = Controller("StatefulSet.apps", "rich-control", "s0")
EARLIER_SET = pytest.param(SET, id="with the set that has made it")
EARLIER_JOB = pytest.param(Controller(JOB_KIND, "rich", "u0"), id="with its job")


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("goes", [EARLIER_SET, EARLIER_JOB])
@pytest.mark.parametrize("is_known", [False, True])
def test_the_volume_of_an_earlier_job_goes_before_there_is_a_set(
    goes: Controller, has_begun: bool, is_known: bool
) -> None:
    """It would begin with the control state of the other."""
    server, cache = Server(VOLUME, controller=goes), make_cache()
    if is_known:
        see(cache, VOLUME, goes)

    outcome = claimed(server, cache, has_begun=has_begun)

    assert (outcome.taken, outcome.waits or is_known) == ((), True)
    assert outcome.held_back == frozenset({("StatefulSet", "rich-control")})
    assert VOLUME not in server.made


@pytest.mark.parametrize("is_known", [False, True])
def test_checkpoints_that_go_with_an_earlier_job_go_before_pods_mount_them(is_known: bool) -> None:
    """A pod that mounts them keeps them from going, and trains on from another job's."""
    claim, goes = ("PersistentVolumeClaim", "rich-checkpoints"), Controller(JOB_KIND, "rich", "u0")
    server, cache = Server(claim, controller=goes), make_cache()
    if is_known:
        see(cache, claim, goes)

    outcome = claimed(server, cache)

    mounting = [each for each in WORKLOADS if claim[1] in str(manifest_of(each)["spec"]["template"]["spec"])]
    assert ("Deployment", "rich-actor") in mounting
    assert outcome.held_back == frozenset(mounting)
    assert outcome.taken == ()


def manifest_of(name: tuple[str, str]) -> Json:
    return next(each for each in WANTED if (each["kind"], each["metadata"]["name"]) == name)


def see(cache: Cache, name: tuple[str, str], controller: Controller | None) -> None:
    """A watch has reported it."""
    references = [] if controller is None else [_reference(controller)]
    raw = {"metadata": {"name": name[1], "uid": "o1", "resourceVersion": "7", "ownerReferences": references}}
    cache.put_owned(KEY, view_owned(name[0], raw))


OF_SET = manifests(
    rich(),
    Owner("team", UID),
    RLJobStatus(),
    OperatorOptions(),
    Platform(),
    FoundClaims(control=ClaimedBy.SET),
)
"""As a job has them whose control Redis was begun by release 0.2.0."""


@pytest.mark.parametrize(
    ("controller", "has_begun", "expected"),
    [
        pytest.param(None, True, ApplyOutcome(), id="cut off from it: it is the job's, which has begun"),
        pytest.param(
            None, False, ApplyOutcome(taken=(Foreign(*VOLUME),)), id="of no owner, and the job has not begun: foreign"
        ),
        pytest.param(
            SET,
            True,
            ApplyOutcome(waits=True, held_back=frozenset({("StatefulSet", "rich-control")})),
            id="going with it",
        ),
    ],
)
def test_a_set_that_makes_its_claim_takes_one_that_is_there(
    controller: Controller | None, has_begun: bool, expected: ApplyOutcome
) -> None:
    server = Server(VOLUME, controller=controller)

    assert claimed(server, make_cache(), has_begun=has_begun, wanted=OF_SET) == expected
    assert VOLUME not in server.made


def test_without_the_right_to_read_nothing_with_pods_is_made() -> None:
    outcome = claimed(Server(deny_reads=True), make_cache())

    assert {(each.kind, each.name) for each in outcome.refusals} == {*WORKLOADS}
