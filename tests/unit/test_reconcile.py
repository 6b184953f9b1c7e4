"""Turns of the operator against an API server that keeps what is written, and refuses what a test says."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import pytest

from rljob_api.status import AcceptedStatus, Condition, RestartStatus, RLJobStatus, TrainingStatus
from rljob_api.times import timestamp
from rljob_operator.build import Owner, Platform, manifests
from rljob_operator.cluster.coordinators import JobCoordinators
from rljob_operator.cluster.job import OperatorContext
from rljob_operator.cluster.reconcile import REFUSED_SECONDS, Reconciler
from rljob_operator.kube.api import Api
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.errors import ApiRefused, refusal
from rljob_operator.kube.kinds import RLJOBS, Resource, resource_of
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.kube.views import JobKey, view_owned
from rljob_operator.kube.work_queue import NextTurn
from rljob_operator.options import OperatorOptions
from tests.unit.build.jobs import changed, quickstart
from tests.unit.kube.managed import entry, fields_of, with_managed_fields

Json = dict[str, Any]
KEY, UID = JobKey("team", "quickstart"), "u1"


class Server:
    """Keeps objects by path. `refuses`: the status with which a write of this verb and path is answered, or 0."""

    def __init__(self, refuses: Callable[[str, str], int] = lambda verb, path: 0) -> None:
        self.refuses = refuses
        self.objects: dict[str, Json] = {}
        self.written: list[tuple[str, str]] = []
        self.events: list[Json] = []
        self.texts = "hostNetwork: expected a truth value."
        """What a rehearsal is refused with."""
        self.rehearsed = 0

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        path = resource.path(namespace, name)
        if path not in self.objects:
            raise refusal("get", 404, "NotFound", path)
        return self.objects[path]

    async def list(self, resource: Resource, namespace: str | None, query: Mapping[str, str], accept: str = "") -> Json:
        return {"items": []}

    async def create(self, resource: Resource, namespace: str, body: Json) -> Json:
        if body["kind"] == "Event":
            self.events.append(body)
        return self._write("create", resource.path(namespace, body["metadata"]["name"]), body)

    async def rehearse(self, resource: Resource, namespace: str, body: Json) -> None:
        self.rehearsed += 1
        if status := self.refuses("rehearse", resource.path(namespace, body["metadata"]["name"])):
            raise refusal("rehearse", status, "Invalid", self.texts)

    async def apply_new(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        return self._write("apply", resource.path(namespace, name), with_managed_fields(body))

    async def apply(self, resource: Resource, namespace: str, name: str, body: Json, uid: str) -> Json:
        return self._write("apply", resource.path(namespace, name), with_managed_fields(body))

    async def merge(
        self, resource: Resource, namespace: str, name: str, body: Json, subresource: str | None = None
    ) -> Json:
        path = resource.path(namespace, name)
        return self._write("merge", path, _merged(self.objects[path], body))

    async def delete(self, resource: Resource, namespace: str, name: str, options: Json) -> Json:
        self._write("delete", resource.path(namespace, name), {"metadata": {}})
        return {}

    def put(self, path: str, body: Json) -> Json:
        known = self.objects.get(path, {"metadata": {"uid": f"uid of {path}", "resourceVersion": "0"}})["metadata"]
        version = str(int(known["resourceVersion"]) + 1)
        metadata = {"uid": known["uid"], **body["metadata"], "resourceVersion": version}
        self.objects[path] = {**body, "metadata": metadata}
        return self.objects[path]

    def _write(self, verb: str, path: str, body: Json) -> Json:
        self.written.append((verb, path))
        status = self.refuses(verb, path)
        if status:
            raise refusal(f"{verb} {path}", status, "Forbidden", "by the test")
        return self.put(path, body)


def _merged(known: Json, patch: Json) -> Json:
    both = {
        key: _merged(known[key], value) if isinstance(value, dict) and isinstance(known.get(key), dict) else value
        for key, value in patch.items()
    }
    return {key: value for key, value in {**known, **both}.items() if value is not None}


class NoCoordinators:
    """There is no pod of one."""

    async def close(self, key: JobKey) -> None:
        pass


class Turns:
    """Of one job, all of whose objects are there if it `has_objects`."""

    def __init__(
        self,
        server: Server,
        status: RLJobStatus,
        *,
        has_objects: bool,
        options: OperatorOptions | None = None,
        metadata: Json | None = None,
        **spec: Any,
    ) -> None:
        job = changed(quickstart(), **spec)
        cache = Cache(lambda key, urgency: None)
        raw = server.put(
            RLJOBS.path(*KEY),
            {
                "metadata": {
                    "name": KEY.name,
                    "namespace": KEY.namespace,
                    "uid": UID,
                    "generation": 1,
                    **(metadata or {}),
                },
                "spec": job.spec.model_dump(mode="json", by_alias=True, exclude_none=True),
                "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
            },
        )
        cache.put_job(raw)
        options, platform = options or OperatorOptions(), Platform()
        if has_objects:
            for each in manifests(job, Owner(KEY.namespace, UID), status, options, platform, was_accepted=True):
                made = with_managed_fields(each)
                made["metadata"] |= {"uid": each["metadata"]["name"], "resourceVersion": "1"}
                cache.put_owned(KEY, view_owned(each["kind"], made))
                server.put(path_of(each["kind"], each["metadata"]["name"]), made)
        self.server, self.cache, self.metrics = server, cache, Metrics()
        coordinators = cast(JobCoordinators, NoCoordinators())
        world = OperatorContext(
            cast(Api, server), cache, coordinators, self.metrics, options, platform, "me", time.time
        )
        self._reconciler = Reconciler(world)

    def edit(self, kind: str, name: str, **changes: Json) -> None:
        """By another client, which owns then what it has changed."""
        found = self.server.objects[path_of(kind, name)]
        theirs = entry(fields_of(changes), "kubectl-edit", "Update")
        own = found["metadata"]["managedFields"][0]["fieldsV1"]
        retained = entry({name: below for name, below in own.items() if name.removeprefix("f:") not in changes})
        metadata = {**found["metadata"], "managedFields": [retained, theirs]}
        self.cache.put_owned(
            KEY, view_owned(kind, self.server.put(path_of(kind, name), {**found, **changes, "metadata": metadata}))
        )

    def submit(self, **spec: Any) -> None:
        """The user's next generation of the job, which need not be valid."""
        found = self.server.objects[JOB]
        generation = found["metadata"]["generation"] + 1
        edited = {"metadata": {**found["metadata"], "generation": generation}, "spec": {**found["spec"], **spec}}
        self.cache.put_job(self.server.put(JOB, {**found, **edited}))

    def turn(self) -> NextTurn | None:
        return asyncio.run(self._reconciler.turn(KEY))


def path_of(kind: str, name: str) -> str:
    return resource_of(kind).path(KEY.namespace, name)


CLAIM = path_of("PersistentVolumeClaim", "quickstart-checkpoints")
JOB = RLJOBS.path(*KEY)


def ended() -> RLJobStatus:
    """A job that succeeded a minute ago, with a checkpoint."""
    at = time.time() - 60
    done = Condition(
        type="Succeeded", status="True", reason="Succeeded", message="done", last_transition_time=timestamp(at)
    )
    return RLJobStatus(
        conditions=[done],
        training=TrainingStatus(checkpoint=7, checkpoint_folder="7-e1-a"),
        restart=RestartStatus.model_validate({"epoch": 1, "opened": 1}),
        ended_at=at,
    )


def test_a_record_that_cannot_be_noted_is_reported_and_keeps_the_job() -> None:
    server = Server(lambda verb, path: 403 if (verb, path) == ("merge", CLAIM) else 0)
    turns = Turns(server, ended(), has_objects=True, ttlSecondsAfterFinished=1)
    observe = turns.turn()
    assert observe is not None
    assert observe.in_seconds <= REFUSED_SECONDS
    assert ("merge", CLAIM) in server.written
    assert ("delete", JOB) not in server.written
    assert any("PersistentVolumeClaim quickstart-checkpoints was refused" in each["message"] for each in server.events)

    server.refuses = lambda verb, path: 0
    turns.turn()
    assert ("delete", JOB) in server.written
    assert server.objects[CLAIM]["metadata"]["annotations"]["rljob.dev/recorded"] == "7 7-e1-a"


def test_a_job_whose_objects_name_is_taken_states_it_and_makes_no_pods() -> None:
    """A pod with the name of the coordinator's Service would receive the job's token."""
    name = "quickstart-coordinator"
    theirs = {"kind": "Service", "metadata": {"name": name, "uid": "theirs", "resourceVersion": "1"}}
    server = Server(lambda verb, path: 409 if (verb, path) == ("apply", path_of("Service", name)) else 0)
    server.put(path_of("Service", name), theirs)
    turns = Turns(server, RLJobStatus(), has_objects=False)
    turns.turn()
    (accepted,) = [each for each in server.objects[JOB]["status"]["conditions"] if each["type"] == "Accepted"]
    assert (accepted["status"], accepted["reason"]) == ("False", "NameTaken")
    assert f"Service {name}" in accepted["message"]
    assert not [path for _, path in server.written if "/deployments/" in path or "/statefulsets/" in path]


ACTOR = path_of("Deployment", "quickstart-actor")


def refuses_actor(verb: str, path: str) -> int:
    return 422 if (verb, path) == ("rehearse", ACTOR) else 0


def accepted_of(server: Server) -> tuple[str, str, str]:
    conditions = server.objects[JOB]["status"]["conditions"]
    found = next(each for each in conditions if each["type"] == "Accepted")
    return found["status"], found["reason"], found["message"]


def test_of_a_spec_that_the_api_server_never_takes_nothing_is_made() -> None:
    server = Server(refuses_actor)
    turns = Turns(server, RLJobStatus(), has_objects=False)
    for _ in range(2):
        observe = turns.turn()
    assert observe is not None
    assert 0 < observe.in_seconds <= 10.0
    message = "Deployment quickstart-actor was refused: hostNetwork: expected a truth value. Mend the template"
    assert accepted_of(server)[:2] == ("False", "ObjectRefused")
    assert accepted_of(server)[2].startswith(message)
    assert [each["reason"] for each in server.events] == ["ObjectRefused"]
    assert {path for verb, path in server.written if verb == "apply"} == set()
    made = manifests(quickstart(), Owner(KEY.namespace, UID), RLJobStatus(), OperatorOptions(), Platform())
    assert server.rehearsed == len(made), "every object is asked for once, and not in every turn"


def test_what_a_policy_refuses_may_be_taken_later_and_is_no_fault_of_the_spec() -> None:
    server = Server(refuses_actor)
    server.texts = "ValidatingAdmissionPolicy 'x' with binding 'y' denied request: not today"
    Turns(server, RLJobStatus(), has_objects=False).turn()
    assert any(verb == "apply" for verb, _ in server.written)


def test_a_job_that_runs_is_not_asked_for_again() -> None:
    restart = RestartStatus.model_validate({"epoch": 1, "opened": 1})
    begun = RLJobStatus(restart=restart, accepted=AcceptedStatus(generation=1))
    server = Server(refuses_actor)
    Turns(server, begun, has_objects=True).turn()
    assert server.rehearsed == 0


def test_a_defect_of_the_build_is_stated_and_makes_no_job_wait_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    turns = Turns(server, RLJobStatus(), has_objects=False)

    def broken(*_: object, **__: object) -> None:
        raise KeyError("tolerations")

    monkeypatch.setattr("rljob_operator.cluster.job.manifests", broken)
    turns.turn()
    assert accepted_of(server)[:2] == ("False", "InvalidSpec")
    assert "KeyError: 'tolerations'" in accepted_of(server)[2]
    assert [each["reason"] for each in server.events] == ["InvalidSpec"]


def test_what_the_job_states_otherwise_than_the_administrator_is_emitted_once_and_again_when_that_changes() -> None:
    server, mine = Server(), {"rollout": {"template": {"spec": {"nodeSelector": {"pool": "mine"}}}}}

    def turns(pool: str) -> Turns:
        template = {"spec": {"nodeSelector": {"pool": pool}}}
        options = OperatorOptions.model_validate({"workloads": {"podTemplate": template}})
        status = RLJobStatus.model_validate(server.objects.get(JOB, {}).get("status", {}))
        return Turns(server, status, has_objects=False, options=options, roles=mine)

    def stated() -> list[str]:
        found = [each["message"] for each in server.events if each["reason"] == "PodTemplateOverridden"]
        server.events.clear()
        return found

    first = turns("all")
    first.turn()
    first.turn()
    sentence = (
        "roles.rollout: spec.nodeSelector.pool: the job has mine, where the operator's workloads.podTemplate has {}."
        " What the job says counts."
    )
    assert stated() == [sentence.format("all")]
    turns("others").turn()
    assert stated() == [sentence.format("others")]


CONFIG = path_of("ConfigMap", "quickstart-job")


def begun(*conditions: Condition) -> RLJobStatus:
    """Of a job whose actor refuses the file that it has read, on a cluster."""
    pods = [{"name": "actor-0", "ready": True, "generation": 0, "life": "a/0"}]
    actor = {"name": "actor", "replicas": 1, "ready": 1, "failures": 0, "pods": pods}
    made = {"restart": {"epoch": 1, "opened": 1}, "accepted": {"generation": 1}, "roles": [actor]}
    return RLJobStatus.model_validate({**made, "conditions": list(conditions)})


def refusing_pod() -> Json:
    ended = {"exitCode": 64, "reason": "Error", "finishedAt": "2026-11-01T00:00:00Z", "message": "not a job"}
    return actor_pod({"terminated": ended})


def actor_pod(state: Json) -> Json:
    labels = {"rljob.dev/job": KEY.name, "rljob.dev/component": "worker", "rljob.dev/role": "actor"}
    return {
        "metadata": {"name": "p", "namespace": KEY.namespace, "uid": "a", "labels": labels, "resourceVersion": "1"},
        "spec": {"nodeName": "n", "containers": [{"name": "worker"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "worker", "restartCount": 0, "state": state}],
        },
    }


def failed(server: Server) -> bool:
    return any((c["type"], c["status"]) == ("Failed", "True") for c in server.objects[JOB]["status"]["conditions"])


def test_a_job_is_supervised_by_its_accepted_spec_while_a_newer_one_is_refused() -> None:
    server = Server()
    turns = Turns(server, begun(), has_objects=True)
    turns.cache.put("Pod", actor_pod({"running": {"startedAt": "2026-11-01T00:00:00Z"}}))
    turns.turn()
    assert not failed(server)
    turns.submit(seed="none")
    turns.cache.put("Pod", refusing_pod())
    turns.turn()
    status = server.objects[JOB]["status"]
    assert (status["observedGeneration"], status["accepted"]["generation"]) == (2, 1)
    assert failed(server)


def has_pods(path: str) -> bool:
    return "/deployments/" in path or "/statefulsets/" in path


def test_nothing_with_pods_is_made_before_the_decision_is_persisted() -> None:
    server = Server()
    Turns(server, RLJobStatus(), has_objects=False).turn()
    assert any(has_pods(path) for _, path in server.written[server.written.index(("merge", JOB)) :])

    server = Server(lambda verb, path: 500 if (verb, path) == ("merge", JOB) else 0)
    with suppress(ApiRefused):
        Turns(server, RLJobStatus(), has_objects=False).turn()
    assert ("merge", JOB) in server.written
    assert [path for _, path in server.written if has_pods(path)] == []


@pytest.mark.parametrize("is_edited", [True, False])
def test_a_file_that_another_client_has_changed_is_restored_and_fails_no_job_for_ever(is_edited: bool) -> None:
    server = Server()
    turns = Turns(server, begun(), has_objects=True)
    if is_edited:
        turns.edit("ConfigMap", "quickstart-job", data={"job.json": "{}"})
    turns.cache.put("Pod", refusing_pod())
    turns.turn()

    restored = [each for each in server.events if each["reason"] == "ObjectRestored"]
    assert (len(restored), failed(server)) == ((1, False) if is_edited else (0, True))
    assert '"numRollouts"' in server.objects[CONFIG]["data"]["job.json"]
    if is_edited:
        assert "was changed by kubectl-edit: data.job.json" in restored[0]["message"]
        assert server.objects[JOB]["status"]["restart"]["countedTowardsMax"] == 0
