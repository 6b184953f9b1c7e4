"""The cache: what is newer wins, and only what is news wakes a job."""

from typing import Any

import pytest

from rljob_api.cluster import secret_copy_name, secret_name
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.views import JobKey, view_owned
from rljob_operator.kube.work_queue import Urgency
from tests.unit.kube.objects import make_pod, running, terminated

KEY = JobKey("ns", "job")


class Woken(list[tuple[JobKey, Urgency]]):
    def take(self) -> int:
        count = len(self)
        self.clear()
        return count


def make_job(version: int, *, uid: str = "j1", status: dict[str, Any] | None = None) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": "job", "uid": uid, "resourceVersion": str(version), "managedFields": [1]}
    return {"metadata": metadata, "spec": {"mode": "x"}, "status": status or {}}


def make_deployment(version: int, *, replicas: int = 1) -> dict[str, Any]:
    metadata = {**make_pod(name="d", uid="d1")["metadata"], "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"replicas": replicas}}


def make_cache() -> tuple[Cache, Woken]:
    woken = Woken()
    return Cache(lambda key, urgency: woken.append((key, urgency))), woken


def make_cache_with_job() -> tuple[Cache, Woken]:
    cache, woken = make_cache()
    cache.put_job(make_job(1))
    woken.clear()
    return cache, woken


def test_an_event_older_than_what_was_written_is_passed_over() -> None:
    cache, woken = make_cache()
    cache.put_job(make_job(1))
    assert woken.take() == 1
    cache.put_job(make_job(5, status={"phase": "Running"}), quietly=True)
    cache.put_job(make_job(5))
    cache.put_job(make_job(3))

    found = cache.job(KEY)
    assert found is not None
    assert found["status"] == {"phase": "Running"}
    assert "managedFields" not in found["metadata"]
    assert woken.take() == 0


def test_a_job_of_the_same_name_replaces_the_one_that_is_gone_whatever_comes_first() -> None:
    cache, woken = make_cache()
    cache.put_job(make_job(9))
    cache.put_job(make_job(4, uid="j2"))
    cache.drop_job(make_job(10))

    found = cache.job(KEY)
    assert found is not None
    assert found["metadata"]["uid"] == "j2"
    cache.drop_job(make_job(11, uid="j2"))
    assert cache.job(KEY) is None
    assert woken.take() == 3


def test_the_answer_to_a_write_does_not_bring_back_a_job_that_is_gone() -> None:
    cache, _ = make_cache()
    cache.put_job(make_job(1))
    cache.mark_gone("j1")
    cache.drop_job(make_job(3))
    cache.put_job(make_job(2, status={"phase": "Running"}), quietly=True)
    assert cache.job(KEY) is None

    cache.put_job(make_job(4, uid="j2"))
    cache.put_job(make_job(2), quietly=True)
    found = cache.job(KEY)
    assert found is not None
    assert found["metadata"]["uid"] == "j2"


def test_the_answer_to_a_write_does_not_undo_what_came_after_it() -> None:
    cache, woken = make_cache_with_job()
    cache.put("Deployment", make_deployment(5, replicas=0))
    woken.clear()
    cache.put_owned(KEY, view_owned("Deployment", make_deployment(4, replicas=1)), quietly=True)
    assert cache.owned(KEY)["Deployment", "d"].replicas == 0

    cache.put("Deployment", make_deployment(6, replicas=0))
    assert woken.take() == 0
    cache.put("Deployment", make_deployment(7, replicas=2))
    assert woken.take() == 1
    cache.drop("Deployment", make_deployment(8))
    cache.put_owned(KEY, view_owned("Deployment", make_deployment(7, replicas=1)), quietly=True)
    assert not cache.owned(KEY)


def test_an_object_that_lost_its_label_is_known_again_once_it_has_it_back() -> None:
    """A watch by label reports that as an end; what was under way before it stays out."""
    cache, _ = make_cache_with_job()
    cache.put("Deployment", make_deployment(5))
    cache.drop("Deployment", make_deployment(7))
    cache.put_owned(KEY, view_owned("Deployment", make_deployment(6)), quietly=True)
    assert not cache.owned(KEY)
    cache.put_owned(KEY, view_owned("Deployment", make_deployment(8)), quietly=True)
    assert cache.owned(KEY)["Deployment", "d"].version == 8


def test_an_object_with_the_label_of_another_job_stays_its_owners() -> None:
    cache, woken = make_cache_with_job()
    owner = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "job", "uid": "j1", "controller": True}
    made = make_deployment(5)
    made["metadata"] |= {"ownerReferences": [owner], "labels": {"rljob.dev/job": "other"}}
    cache.put("Deployment", made)
    assert ("Deployment", "d") in cache.owned(KEY)
    assert woken.take() == 1


def test_a_list_that_is_older_than_an_object_does_not_make_it_go_for_ever() -> None:
    cache, _ = make_cache()
    cache.put_owned(KEY, view_owned("Deployment", make_deployment(5)), quietly=True)
    cache.replace("Deployment", None, [])
    assert not cache.owned(KEY)

    cache.put("Deployment", make_deployment(5))
    assert cache.owned(KEY)["Deployment", "d"].version == 5


def test_nothing_is_retained_of_a_job_that_is_gone_with_all_it_was_made_of() -> None:
    cache, _ = make_cache()
    cache.put_job(make_job(1))
    cache.put("Pod", make_pod(running()))
    cache.put("Deployment", make_deployment(2))

    cache.drop("Pod", make_pod(running()))
    cache.drop("Deployment", make_deployment(3))
    cache.drop_job(make_job(4))
    assert [cache._jobs, cache._pods, cache._owned] == [{}, {}, {}]


def test_secrets_that_no_watch_reports_are_forgotten_with_their_job() -> None:
    cache, _ = make_cache()
    cache.put_job(make_job(1))
    cache.put("Deployment", make_deployment(2))
    for name in (secret_name("job"), secret_copy_name("job")):
        metadata = {**make_pod(name=name, uid=name)["metadata"], "resourceVersion": "3"}
        cache.put_owned(KEY, view_owned("Secret", {"metadata": metadata}), quietly=True)
    cache.drop_job(make_job(4))
    assert set(cache.owned(KEY)) == {("Deployment", "d")}
    cache.drop("Deployment", make_deployment(5))
    assert cache._owned == {}


def test_a_pod_that_looks_the_same_wakes_no_one() -> None:
    cache, woken = make_cache_with_job()
    cache.put("Pod", make_pod(running()))
    heartbeat = make_pod(running())
    heartbeat["metadata"]["resourceVersion"] = "2"
    heartbeat["metadata"]["managedFields"] = ["much"]
    cache.put("Pod", heartbeat)
    assert woken.take() == 1

    cache.put("Pod", make_pod(terminated(1)))
    assert woken.take() == 1


@pytest.mark.parametrize(
    ("component", "woken_by_readiness"),
    [
        pytest.param("worker", 0, id="of a worker the coordinator tells it"),
        pytest.param("coordinator", 1, id="the coordinator takes requests now"),
    ],
)
def test_where_a_pod_is_placed_wakes_no_one_and_that_it_is_ready_only_for_the_coordinator(
    component: str, woken_by_readiness: int
) -> None:
    cache, woken = make_cache_with_job()
    cache.put("Pod", make_pod(running(), component=component))
    woken.clear()
    elsewhere = make_pod(running(), component=component)
    elsewhere["spec"]["nodeName"] = "node1"
    cache.put("Pod", elsewhere)
    assert woken.take() == 0
    assert cache.pods(KEY)[0].node == "node1"

    cache.put("Pod", make_pod(running(), component=component, conditions={"Ready": ("True", "", "")}))
    assert woken.take() == woken_by_readiness


def test_a_list_reports_what_went_while_no_one_watched() -> None:
    cache, woken = make_cache_with_job()
    cache.replace("Pod", None, [make_pod(running(), uid="u1"), make_pod(running(), uid="u2")])
    woken.clear()
    cache.replace("Pod", None, [make_pod(running(), uid="u2")])

    assert [pod.uid for pod in cache.pods(KEY)] == ["u2"]
    assert woken.take() == 1


def test_a_list_of_one_namespace_states_nothing_of_another() -> None:
    cache, _ = make_cache()
    cache.replace("Pod", None, [make_pod(running(), uid="u1")])
    cache.replace("Pod", "elsewhere", [])

    assert [pod.uid for pod in cache.pods(KEY)] == ["u1"]


def test_objects_are_known_by_kind_and_name_and_forgotten_by_uid() -> None:
    cache, _ = make_cache()
    service = make_pod(running(), name="s", uid="old")
    cache.put("Service", service)
    cache.put("Service", make_pod(running(), name="s", uid="new"))
    cache.drop("Service", service)

    assert cache.owned(KEY)["Service", "s"].uid == "new"
    cache.replace("Service", None, [])
    assert not cache.owned(KEY)


def test_a_pod_without_the_label_belongs_to_no_one() -> None:
    cache, woken = make_cache_with_job()
    stranger = make_pod(running())
    stranger["metadata"]["labels"] = {}
    cache.put("Pod", stranger)

    assert woken.take() == 0


def test_what_belongs_to_no_known_job_wakes_no_one_and_is_there_when_the_job_comes() -> None:
    cache, woken = make_cache()
    cache.put("Pod", make_pod(running()))
    cache.put("Deployment", make_deployment(2))
    assert woken.take() == 0

    cache.put_job(make_job(3))
    assert woken.take() == 1
    assert len(cache.pods(KEY)) == 1
    cache.drop_job(make_job(4))
    assert woken.take() == 1, "its turn forgets it"
    cache.put("Pod", make_pod(terminated(0)))
    cache.drop("Pod", make_pod(terminated(0)))
    cache.drop("Deployment", make_deployment(5))
    assert woken.take() == 0
