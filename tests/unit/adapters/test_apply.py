"""What has to be written so that a job's objects are as they should be."""

import asyncio
from typing import Any, cast

import pytest

from rljob_api.cluster import ANNOTATION_APPLIED, ANNOTATION_BUILT_FOR
from rljob_operator.adapters.api import Api
from rljob_operator.adapters.apply import Delta, carry_out, difference
from rljob_operator.adapters.cache import Cache
from rljob_operator.adapters.errors import ApiRefused, refusal
from rljob_operator.adapters.resources import Resource
from rljob_operator.adapters.views import JobKey, OwnedView

param = pytest.param
ME, OTHER = "uid-1", "uid-0"


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
    owner: str = ME,
    deleting: bool = False,
) -> OwnedView:
    return OwnedView(kind, name, f"uid-of-{name}", owner, applied, built_for, "t1", deleting, replicas)


DEPLOYMENT = there("Deployment", replicas=1)
FOREIGN = there("ConfigMap", applied="")

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
    param([], [there("Service", owner=OTHER)], [], id="nor what is of an earlier job: the garbage collector takes it"),
    param([], [there("Service", deleting=True)], [], id="nor what goes already"),
    param(
        [manifest("Service")], [there("Service", owner=OTHER)], ["waits"], id="what an earlier job left is waited for"
    ),
    param(
        [manifest("Service")], [there("Service", deleting=True)], ["waits"], id="what is being deleted is waited for"
    ),
]


@pytest.mark.parametrize(("wanted", "known", "expected"), ROWS)
def test_difference(wanted: list[Any], known: list[OwnedView], expected: list[str]) -> None:
    delta = difference(wanted, {(view.kind, view.name): view for view in known}, ME)

    assert told(delta) == expected


def test_once_written_there_is_no_difference() -> None:
    wanted = [manifest("Service", "s"), manifest("Deployment", "d", replicas=2)]
    known = [there("Service", "s"), there("Deployment", "d", replicas=2)]

    assert difference(wanted, {(view.kind, view.name): view for view in known}, ME) == Delta()


def told(delta: Delta) -> list[str]:
    return [
        *(f"apply {each['kind']} {each['metadata']['name']}" for each in delta.apply),
        *(f"scale {view.kind} {view.name} to {replicas}" for view, replicas in delta.scale),
        *(f"delete {view.kind} {view.name}" for view in delta.delete),
        *(["waits"] if delta.waits else []),
    ]


class Server:
    """Refuses objects of these kinds, and is asked for the rest."""

    def __init__(self, **refused: ApiRefused) -> None:
        self.refused = refused
        self.asked: list[str] = []

    async def apply(self, resource: Resource, namespace: str, name: str, body: Any) -> Any:
        self.asked.append(f"{body['kind']} {name}")
        if body["kind"] in self.refused:
            raise self.refused[body["kind"]]
        return {"metadata": {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1"}}


def written(server: Server, *kinds: str) -> list[str]:
    delta = Delta(apply=tuple(manifest(kind) for kind in kinds))
    cache = Cache(lambda key, cause: None)
    return [str(each) for each in asyncio.run(carry_out(cast(Api, server), cache, JobKey("ns", "job"), delta))]


def test_an_object_that_is_refused_keeps_no_other_from_being_written() -> None:
    server = Server(PodDisruptionBudget=refusal("PATCH", 403, "Forbidden", "exceeded quota: q"))

    refused = written(server, "Service", "PodDisruptionBudget", "Deployment")

    assert refused == ["PodDisruptionBudget a was refused: exceeded quota: q"]
    assert server.asked == ["Service a", "PodDisruptionBudget a", "Deployment a"]


def test_a_server_that_asks_for_time_is_asked_nothing_more() -> None:
    server = Server(Service=refusal("PATCH", 429, "TooManyRequests", "too many requests", retry_after=2.0))

    assert written(server, "ConfigMap", "Service", "Deployment") == ["Service a was refused: too many requests"]
    assert server.asked == ["ConfigMap a", "Service a"]


def test_nothing_with_pods_is_made_while_a_policy_is_refused() -> None:
    server = Server(NetworkPolicy=refusal("PATCH", 403, "Forbidden", "denied by a webhook"))

    assert len(written(server, "NetworkPolicy", "ConfigMap", "StatefulSet", "Deployment")) == 1
    assert server.asked == ["NetworkPolicy a", "ConfigMap a"]
