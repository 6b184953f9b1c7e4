"""Turns of a job that is being deleted and that a finalizer keeps: its pods end, and nothing is made."""

import pytest

from rljob_api.cluster import COMPONENT_WORKER, LABEL_COMPONENT, LABEL_JOB
from rljob_api.status import RestartStatus, RLJobStatus
from rljob_operator.cluster.reconcile import Reconciler
from tests.unit.kube.objects import make_pod
from tests.unit.test_reconcile import JOB, KEY, Server, Turns, path_of

WORKERS = [
    path_of("Deployment", f"quickstart-{role}") for role in ("actor", "actor-fwd", "rollout", "reference", "advantages")
]
SERVERS = [
    path_of("Deployment", "quickstart-coordinator"),
    path_of("StatefulSet", "quickstart-control"),
    path_of("StatefulSet", "quickstart-storage"),
]


def deleting(server: Server, *finalizers: str, has_objects: bool = True) -> Turns:
    """Of a job that ran, as an operator finds it that was started after the deletion."""
    restart = RestartStatus.model_validate({"epoch": 1, "opened": 1})
    metadata = {"deletionTimestamp": "2026-11-01T00:00:00Z", "finalizers": list(finalizers)}
    return Turns(server, RLJobStatus(restart=restart), has_objects=has_objects, metadata=metadata)


def scaled(server: Server) -> set[str]:
    return {path for verb, path in server.written if verb == "merge" and path != JOB}


def test_pods_of_roles_end_first_then_those_that_they_save_by() -> None:
    server = Server()
    turns = deleting(server, "example.com/audit")
    turns.turn()
    assert scaled(server) == set(WORKERS)
    assert {server.objects[path]["spec"]["replicas"] for path in WORKERS} == {0}
    turns.turn()
    assert scaled(server) == {*WORKERS, *SERVERS}
    server.written.clear()
    turns.turn()
    assert scaled(server) == set()


def test_the_status_states_deleting_and_one_event_names_the_finalizer() -> None:
    server = Server()
    turns = deleting(server, "example.com/audit")
    for _ in range(3):
        turns.turn()
    assert server.objects[JOB]["status"]["phase"] == "Deleting"
    (event,) = [each for each in server.events if each["reason"] == "Deleting"]
    assert "the finalizer example.com/audit" in event["message"]
    assert event["type"] == "Normal"


def test_the_log_names_what_a_deletion_waits_for_once_for_each_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    turns = deleting(Server(), "example.com/audit", "example.com/bill")
    for _ in range(3):
        turns.turn()
    raw = turns.cache.job(KEY)
    assert raw is not None
    raw["metadata"]["finalizers"].remove("example.com/audit")
    for _ in range(3):
        turns.turn()
    logged = [record.getMessage() for record in caplog.records if "is being deleted" in record.getMessage()]
    assert ["example.com/audit" in line for line in logged] == [True, False]


def test_an_operator_that_finds_the_status_written_emits_the_event_that_the_one_before_has_not() -> None:
    server = Server(lambda verb, path: 503 if "/events/" in path else 0)
    turns = deleting(server, "example.com/audit")
    turns.turn()
    assert server.objects[JOB]["status"]["phase"] == "Deleting"
    server.refuses, server.events = lambda verb, path: 0, []
    turns._reconciler = Reconciler(turns._reconciler._world)
    for _ in range(2):
        turns.turn()
    assert [each["reason"] for each in server.events] == ["Deleting"]


def test_servers_stay_while_a_worker_saves_by_way_of_them() -> None:
    server = Server()
    turns = deleting(server, "example.com/audit")
    worker = make_pod(name="quickstart-rollout-0")
    labels = {LABEL_JOB: KEY.name, LABEL_COMPONENT: COMPONENT_WORKER}
    worker["metadata"] |= {"namespace": KEY.namespace, "labels": labels}
    turns.cache.put("Pod", worker)
    for _ in range(2):
        turns.turn()
        assert scaled(server) == set(WORKERS)
    turns.cache.drop("Pod", worker)
    turns.turn()
    assert scaled(server) == {*WORKERS, *SERVERS}


def test_nothing_is_made_while_the_garbage_collector_deletes_it() -> None:
    server = Server()
    turns = deleting(server, "foregroundDeletion", has_objects=False)
    for _ in range(2):
        turns.turn()
    assert {(verb, path) for verb, path in server.written if "/events/" not in path} == {("merge", JOB)}


def test_a_deletion_that_orphans_leaves_pods_and_status() -> None:
    server = Server()
    deleting(server, "orphan").turn()
    assert server.written == []


@pytest.mark.parametrize("status", [404, 409])
def test_a_set_that_is_gone_meanwhile_keeps_the_others_from_nothing(status: int) -> None:
    server = Server(lambda verb, path: status if (verb, path) == ("merge", WORKERS[0]) else 0)
    turns = deleting(server, "example.com/audit")
    with pytest.raises(Exception, match="by the test"):
        turns.turn()
    assert scaled(server) == set(WORKERS)
