"""Pods that an earlier job left: those that go are waited for, those that stay are named."""

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from rljob_operator.kube.api import Api
from rljob_operator.kube.kinds import REPLICA_SETS
from rljob_operator.kube.ownership import PATIENCE_SECONDS, OrphanedPods
from rljob_operator.kube.views import Controller, JobKey, PodView, view_pod
from tests.unit.kube.fake_api import ApiOfAnswers, Json
from tests.unit.kube.objects import NOW, NOW_SECONDS, make_pod, running

KEY = JobKey("ns", "job")
SET = Controller("ReplicaSet.apps", "job-actor-5f", "r1")
DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "job-actor", "uid": "d1", "controller": True}
BARE = view_pod(make_pod(running()))
REPLICA = replace(BARE, controller=SET)


class Setting:
    """The remains of one job, and the time."""

    def __init__(self, replica_set: Json | None = None) -> None:
        answers = {} if replica_set is None else {REPLICA_SETS.path("ns", SET.name): {"metadata": replica_set}}
        self.api, self.now = ApiOfAnswers(answers), NOW_SECONDS
        self.orphaned = OrphanedPods(cast(Api, self.api), KEY, clock=lambda: self.now)

    def named(self, *pods: PodView) -> list[str]:
        return [str(each) for each in asyncio.run(self.orphaned.stranded(pods))]


@pytest.mark.parametrize(
    ("pod", "replica_set", "expected"),
    [
        pytest.param(BARE, None, ["Pod job-actor-0"], id="a pod of nobody stays"),
        pytest.param(replace(BARE, deleting=True), None, [], id="unless it is being deleted"),
        pytest.param(REPLICA, {}, ["ReplicaSet job-actor-5f"], id="what a ReplicaSet of nobody makes, stays"),
        pytest.param(REPLICA, {"ownerReferences": [DEPLOYMENT]}, [], id="one of a Deployment goes with it"),
        pytest.param(REPLICA, {"deletionTimestamp": NOW}, [], id="one that is being deleted goes"),
        pytest.param(REPLICA, None, [], id="the pods of one that is gone go"),
        pytest.param(replace(BARE, controller=replace(SET, kind="Job.batch")), {}, [], id="of others nothing is known"),
    ],
)
def test_what_stays_is_named(pod: PodView, replica_set: Json | None, expected: list[str]) -> None:
    assert Setting(replica_set).named(pod) == expected


def test_a_replica_set_is_asked_for_once_for_all_its_pods() -> None:
    context = Setting({})

    assert context.named(REPLICA, replace(REPLICA, name="job-actor-1", uid="u2")) == ["ReplicaSet job-actor-5f"]
    assert len(context.api.asked) == 1


def test_after_a_while_whatever_is_there_and_not_being_deleted_is_named() -> None:
    """A pod may take minutes to end; a node that is lost keeps its own until someone lets go of them."""
    context = Setting({"ownerReferences": [DEPLOYMENT]})
    pods = REPLICA, replace(BARE, name="job-control-0", deleting=True)
    assert context.named(*pods) == []
    context.now += PATIENCE_SECONDS
    assert context.named(*pods) == []
    context.now += 1

    assert context.named(*pods) == ["Pod job-actor-0 (of ReplicaSet job-actor-5f)"]
    context.orphaned.are_gone()
    assert context.named(*pods) == []
