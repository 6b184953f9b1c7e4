"""What has to be written so that a job's objects are as they should be."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from rljob_api.cluster import ANNOTATION_APPLIED, ANNOTATION_BUILT_FOR
from rljob_operator.kube.api import Api
from rljob_operator.kube.apply import ASK_AGAIN_SECONDS, ApplyOutcome, Delta, JobObjects, RefusedWrites, difference
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.errors import ApiRefused, refusal
from rljob_operator.kube.kinds import Resource
from rljob_operator.kube.ownership import foreign
from rljob_operator.kube.views import Controller, JobKey, OwnedView, view_owned
from tests.unit.kube.managed import with_managed_fields

Json = dict[str, Any]
NOTHING = ApplyOutcome()

param = pytest.param
KEY = JobKey("ns", "job")
ME = Controller("RLJob.rljob.dev", "job", "uid-1")
EARLIER = Controller("RLJob.rljob.dev", "job", "uid-0")
OTHER = Controller("Deployment.apps", "web", "uid-9")


def manifest(kind: str, name: str = "a", *, applied: str = "d1", built_for: str = "r1", replicas: int = 1) -> Any:
    return {
        "kind": kind,
        "metadata": {"name": name, "annotations": {ANNOTATION_APPLIED: applied, ANNOTATION_BUILT_FOR: built_for}},
        "spec": {"replicas": replicas} if kind in ("Deployment", "StatefulSet") else {},
    }


def there(
    kind: str,
    name: str = "a",
    *,
    applied: str = "d1",
    built_for: str = "r1",
    replicas: int | None = None,
    owner: Controller | None = ME,
    deleting: bool = False,
) -> OwnedView:
    return OwnedView(kind, name, f"uid-of-{name}", owner, applied, built_for, "t1", deleting, replicas)


DEPLOYMENT = there("Deployment", replicas=1)


def owned_by_the_operator(kind: str) -> str:
    made = with_managed_fields(manifest(kind))
    return view_owned(kind, {**made, "metadata": {**made["metadata"], "uid": "u1", "resourceVersion": "1"}}).owned


FOREIGN = there("ConfigMap", applied="", owner=None)

ROWS = [
    param([manifest("Service")], [], ["apply Service a"], id="what is not there is applied"),
    param([manifest("Service")], [there("Service")], [], id="what is as it should be is not written"),
    param(
        [manifest("Service", applied="d2")],
        [there("Service")],
        ["apply Service a"],
        id="what should be different is applied",
    ),
    param([manifest("Deployment")], [DEPLOYMENT], [], id="a Deployment as it should be is not written"),
    param(
        [manifest("Deployment", applied="d2", built_for="r2")],
        [DEPLOYMENT],
        ["apply Deployment a"],
        id="a new revision of the spec changes a Deployment",
    ),
    param(
        [manifest("Deployment", applied="d2")],
        [DEPLOYMENT],
        [],
        id="another version of the operator leaves a Deployment of this revision alone",
    ),
    param(
        [manifest("Deployment", applied="d2", replicas=3)],
        [DEPLOYMENT],
        ["scale Deployment a to 3"],
        id="it is scaled all the same",
    ),
    param(
        [manifest("Deployment")],
        [there("Deployment", replicas=7)],
        ["scale Deployment a to 1"],
        id="replicas that somebody else set are set back",
    ),
    param([], [there("Service")], ["delete Service a"], id="what is no longer wanted is deleted"),
    param([], [there("PersistentVolumeClaim")], [], id="but never a claim"),
    param([], [there("Secret")], [], id="nor the Secret"),
    param([], [FOREIGN], [], id="nor what somebody else made under the job's label"),
    param(
        [], [there("Service", owner=EARLIER)], [], id="nor what is of an earlier job: the garbage collector takes it"
    ),
    param([], [there("Service", owner=None)], [], id="nor what was cut off from one"),
    param([], [there("Service", deleting=True)], [], id="nor what goes already"),
    param(
        [manifest("Service")], [there("Service", owner=EARLIER)], ["waits"], id="what an earlier job left is waited for"
    ),
    param(
        [manifest("Service"), manifest("ConfigMap")],
        [there("Service", owner=OTHER)],
        ["apply ConfigMap a", "taken by Service a (of Deployment web)"],
        id="what somebody else has is not written",
    ),
    param(
        [manifest("Deployment", replicas=3)],
        [there("Deployment", owner=None, replicas=1)],
        ["taken by Deployment a"],
        id="nor scaled",
    ),
    param(
        [manifest("Service")], [there("Service", deleting=True)], ["waits"], id="what is being deleted is waited for"
    ),
]


@pytest.mark.parametrize(("wanted", "known", "expected"), ROWS)
def test_difference(wanted: list[Any], known: list[OwnedView], expected: list[str]) -> None:
    delta = difference(wanted, {(view.kind, view.name): view for view in known}, KEY, ME.uid)

    assert reported(delta) == expected


def test_once_written_there_is_no_difference() -> None:
    wanted = [manifest("Service", "s"), manifest("Deployment", "d", replicas=2)]
    known = [there("Service", "s"), there("Deployment", "d", replicas=2)]

    assert difference(wanted, {(view.kind, view.name): view for view in known}, KEY, ME.uid) == Delta()


def reported(delta: Delta) -> list[str]:
    return [
        *(f"apply {each['kind']} {each['metadata']['name']}" for each in delta.apply),
        *(f"scale {view.kind} {view.name} to {replicas}" for view, replicas in delta.scale),
        *(f"delete {view.kind} {view.name}" for view in delta.delete),
        *(["waits"] if delta.waits else []),
        *(f"taken by {each}" for each in delta.taken),
    ]


class Server:
    """Has objects that no watch has reported, refuses those of some kinds, and takes the rest."""

    def __init__(self, *stored: Json, **refused: ApiRefused) -> None:
        self.stored = {(each["kind"], each["metadata"]["name"]): each for each in stored}
        self.refused = refused
        self.asked: list[str] = []

    async def apply_new(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        self._ask("create", body["kind"], name)
        if (body["kind"], name) in self.stored:
            raise refusal("PATCH", 409, "Conflict", "the object has been modified")
        return self._written(body, "u1")

    async def apply(self, resource: Resource, namespace: str, name: str, body: Json, uid: str) -> Json:
        self._ask("apply", body["kind"], name)
        found = self.stored.get((body["kind"], name))
        if found is None or found["metadata"]["uid"] != uid:
            raise refusal("PATCH", 422, "Invalid", "metadata.uid: field is immutable")
        return self._written(body, uid)

    async def delete(self, resource: Resource, namespace: str, name: str, options: Json) -> Json:
        self.asked.append(f"delete {resource.kind} {name} {options['preconditions']['uid']}")
        return {}

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        self.asked.append(f"get {resource.kind} {name}")
        if (resource.kind, name) not in self.stored:
            raise refusal("GET", 404, "NotFound", "")
        return self.stored[resource.kind, name]

    def _ask(self, verb: str, kind: str, name: str) -> None:
        self.asked.append(f"{verb} {kind} {name}")
        if kind in self.refused:
            raise self.refused[kind]

    def _written(self, body: Json, uid: str) -> Json:
        return {
            "kind": body["kind"],
            "metadata": {"name": body["metadata"]["name"], "uid": uid, "resourceVersion": "1"},
        }


def stored(kind: str, owner: Controller | None, *, uid: str = "u1", deleting: bool = False) -> Json:
    metadata: Json = {"name": "a", "uid": uid, "resourceVersion": "7"}
    if owner is not None:
        of, _, group = owner.kind.partition(".")
        reference = {"apiVersion": f"{group}/v1", "kind": of, "name": owner.name, "uid": owner.uid, "controller": True}
        metadata["ownerReferences"] = [reference]
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    return {"kind": kind, "metadata": metadata}


def carried_out(
    server: Server, *kinds: str, known: OwnedView | None = None, before: ApplyOutcome = NOTHING
) -> ApplyOutcome:
    delta = Delta(apply=tuple(manifest(kind) for kind in kinds))
    cache = Cache(lambda key, cause: None)
    if known is not None:
        cache.put_owned(KEY, known)
    return asyncio.run(JobObjects(cast(Api, server), cache, KEY, ME.uid).carry_out(delta, before))


def refused(outcome: ApplyOutcome) -> list[str]:
    return [str(each) for each in outcome.refusals]


def test_an_object_that_is_refused_keeps_no_other_from_being_written() -> None:
    server = Server(PodDisruptionBudget=refusal("PATCH", 403, "Forbidden", "exceeded quota: q"))

    outcome = carried_out(server, "Service", "PodDisruptionBudget", "Deployment")

    assert refused(outcome) == ["PodDisruptionBudget a was refused: exceeded quota: q"]
    assert server.asked == ["create Service a", "create PodDisruptionBudget a", "create Deployment a"]


def test_what_is_deleted_is_the_object_that_was_seen_and_not_another_one_of_its_name() -> None:
    server, cache, delta = Server(), Cache(lambda key, cause: None), Delta(delete=(there("Service"),))
    asyncio.run(JobObjects(cast(Api, server), cache, KEY, ME.uid).carry_out(delta))
    assert server.asked == [f"delete Service a {there('Service').uid}"]


def test_nothing_more_is_made_for_a_job_that_is_gone() -> None:
    cache = Cache(lambda key, cause: None)

    class Deletes(Server):
        """The user deletes the job while its first object is made."""

        async def apply_new(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
            cache.mark_gone(ME.uid)
            return await super().apply_new(resource, namespace, name, body)

    server, delta = Deletes(), Delta(apply=(manifest("Service"), manifest("StatefulSet")))
    asyncio.run(JobObjects(cast(Api, server), cache, KEY, ME.uid).carry_out(delta))
    assert server.asked == ["create Service a"]


class Turns:
    """In which a job asks for the same again."""

    def __init__(self, server: Server) -> None:
        self.server, self.now = server, 0.0
        self._refused = RefusedWrites(lambda: self.now)

    def turn(self, *wanted: Any) -> list[str]:
        """The refusals that it reports."""
        cache = Cache(lambda key, cause: None)
        api = cast(Api, self.server)
        return refused(asyncio.run(JobObjects(api, cache, KEY, ME.uid, self._refused).carry_out(Delta(apply=wanted))))


def test_what_is_refused_is_reported_in_every_turn_and_asked_for_ever_more_seldom() -> None:
    turns = Turns(Server(Service=refusal("PATCH", 403, "Forbidden", "exceeded quota: q")))
    for _ in range(300):
        assert turns.turn(manifest("Service")) == ["Service a was refused: exceeded quota: q"]
        turns.now += 0.1
    asked = len(turns.server.asked)
    assert 5 <= asked <= 7, "at 0, 1, 3, 7, 15 and 23 s"

    turns.server.refused = {}
    assert turns.turn(manifest("Service", applied="d2")) == [], "what the user has changed is asked for at once"
    assert len(turns.server.asked) == asked + 1


def test_what_was_refused_is_made_soon_after_it_may_be() -> None:
    turns = Turns(Server(Service=refusal("PATCH", 403, "Forbidden", "exceeded quota: q")))
    for _ in range(100):
        turns.turn(manifest("Service"))
        turns.now += 1.0
    turns.server.refused = {}
    turns.now += ASK_AGAIN_SECONDS[1]
    assert turns.turn(manifest("Service")) == []


def test_a_conflict_is_asked_again_at_once() -> None:
    turns = Turns(Server(NetworkPolicy=refusal("PATCH", 409, "Conflict", "the object has been modified")))
    turns.turn(manifest("NetworkPolicy"))
    turns.turn(manifest("NetworkPolicy"))
    assert turns.server.asked.count("create NetworkPolicy a") == 2


def test_a_server_that_asks_for_time_is_asked_nothing_more() -> None:
    server = Server(Service=refusal("PATCH", 429, "TooManyRequests", "too many requests", retry_after=2.0))

    outcome = carried_out(server, "ConfigMap", "Service", "Deployment")
    assert refused(outcome) == ["Service a was refused: too many requests"]
    assert server.asked == ["create ConfigMap a", "create Service a"]
    assert carried_out(server, "Deployment", before=outcome) == outcome
    assert server.asked == ["create ConfigMap a", "create Service a"]


def test_nothing_with_pods_is_made_while_a_policy_is_refused() -> None:
    server = Server(NetworkPolicy=refusal("PATCH", 403, "Forbidden", "denied by a webhook"))

    outcome = carried_out(server, "NetworkPolicy", "ConfigMap", "StatefulSet", "Deployment")
    assert len(outcome.refusals) == 1
    assert server.asked == ["create NetworkPolicy a", "create ConfigMap a"]
    assert carried_out(server, "NetworkPolicy", "Deployment", before=outcome) == outcome
    assert server.asked == ["create NetworkPolicy a", "create ConfigMap a"]


@pytest.mark.parametrize("owner", [param(None, id="nobody's"), param(OTHER, id="of another controller")])
def test_what_no_watch_has_reported_is_not_taken_over(owner: Controller | None) -> None:
    server = Server(stored("Service", owner))

    outcome = carried_out(server, "ConfigMap", "Service", "NetworkPolicy", "Deployment")

    assert outcome.taken == (foreign(there("Service", owner=owner)),)
    assert server.asked == ["create ConfigMap a", "create Service a", "get Service a", "create NetworkPolicy a"]


def test_what_an_operator_made_and_died_before_it_knew_is_the_jobs_own() -> None:
    server = Server(stored("Deployment", ME))

    assert carried_out(server, "Deployment") == NOTHING
    assert server.asked == ["create Deployment a", "get Deployment a", "apply Deployment a"]


@pytest.mark.parametrize(
    "found",
    [param(stored("Service", EARLIER), id="earlier"), param(stored("Service", ME, deleting=True), id="deleted")],
)
def test_what_goes_is_waited_for_although_no_watch_has_reported_it(found: Json) -> None:
    outcome = carried_out(Server(found), "Service", "Deployment")

    assert (outcome.waits, outcome.taken, outcome.refusals) == (True, (), ())
    assert [view.name for view in outcome.leaving] == ["a"]


def test_another_object_that_has_the_name_since_is_not_taken_over() -> None:
    server = Server(stored("Service", None, uid="u2"))

    known = replace(there("Service"), uid="u1", owned=owned_by_the_operator("Service"))
    outcome = carried_out(server, "Service", known=known)

    assert outcome == ApplyOutcome(taken=(foreign(there("Service", owner=None)),))
    assert server.asked == ["apply Service a", "get Service a"]
