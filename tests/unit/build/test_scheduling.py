"""Who places the pods, their gang, their priority, their domain: in every pod of a job that says so, in no other's."""

from typing import Any

import pytest

from rljob_api.cluster import LABEL_JOB, LABEL_POD_GROUP
from rljob_api.quantity import value
from rljob_api.spec import RLJob
from rljob_api.status import ConditionType
from rljob_operator.build import Manifest, Platform, template_problems, warnings
from rljob_operator.build.containers import COORDINATOR_RESOURCES
from rljob_operator.build.scheduling import MISSING_API
from rljob_operator.options import OperatorOptions
from tests.unit.build.jobs import build, changed, container, make_status, pod_templates, quickstart

_SHARED = {"checkpoint": {"volume": {"accessMode": "ReadWriteMany"}}}
_GANG = {"scheduling": {"gang": "PodGroup"}, **_SHARED}
_GROUP = "PodGroup/quickstart"
_STAY = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
_SERVERS = 4
"""Coordinator, control Redis, two storage units."""
_ALL = {"rollout": 1, "actor": 1, "actor_fwd": 1, "reference": 1, "advantages": 1}


def _built(job: RLJob, *conditions: ConditionType, **roles: int) -> dict[str, Manifest]:
    return build(job, make_status(*conditions, **roles), platform=Platform(pod_groups=True))


def _pods(**fields: Any) -> dict[str, dict[str, Any]]:
    return pod_templates(_built(changed(quickstart(), **fields)))


def test_every_pod_has_the_scheduler_and_the_priority() -> None:
    fields = {"schedulerName": "scheduler-plugins-scheduler", "priorityClassName": "research"}
    templates = _pods(scheduling=fields)
    assert len(templates) == 8
    for name, template in templates.items():
        assert fields.items() <= template["spec"].items(), name
        assert (
            "annotations" not in template["metadata"] or not _STAY.keys() & template["metadata"]["annotations"].keys()
        )


def test_a_roles_template_may_name_another_priority() -> None:
    patch = {"spec": {"priorityClassName": "low"}}
    templates = _pods(scheduling={"priorityClassName": "high"}, roles={"advantages": {"template": patch}})
    found = {name: template["spec"]["priorityClassName"] for name, template in templates.items()}
    assert found.pop("Deployment/quickstart-advantages") == "low"
    assert set(found.values()) == {"high"}


def test_every_pod_of_a_gang_is_in_its_group_and_asks_autoscalers_to_stay() -> None:
    for name, template in _pods(**_GANG).items():
        assert template["metadata"]["labels"][LABEL_POD_GROUP] == "quickstart", name
        assert _STAY.items() <= template["metadata"]["annotations"].items(), name


@pytest.mark.parametrize(
    ("scheduling", "stays"),
    [
        ({}, False),
        ({"gang": "PodGroup"}, True),
        ({"gang": "PodGroup", "nodeRemoval": "Allowed"}, False),
        ({"nodeRemoval": "Refused"}, True),
    ],
)
def test_whether_autoscalers_may_take_the_nodes(scheduling: dict[str, Any], stays: bool) -> None:
    for template in _pods(scheduling=scheduling, **_SHARED).values():
        assert (_STAY.items() <= template["metadata"]["annotations"].items()) is stays


def test_a_group_is_refused_where_the_cluster_has_none() -> None:
    with pytest.raises(ValueError, match="which this cluster does not have") as refused:
        build(changed(quickstart(), **_GANG))
    assert str(refused.value) == MISSING_API


@pytest.mark.parametrize(
    ("fields", "conditions", "roles", "count"),
    [
        pytest.param({}, (), {}, _SERVERS + 5, id="a new job"),
        pytest.param({"roles": {"rollout": {"replicas": 4}}}, (), {}, _SERVERS + 8, id="all rollouts"),
        pytest.param(
            {"roles": {"rollout": {"replicas": 4}}, "scheduling": {"minRollouts": 2}},
            (),
            {**_ALL, "rollout": 4},
            _SERVERS + 6,
            id="the least of rollouts, also when more run",
        ),
        pytest.param(
            {"algorithm": {"advantage": "Gae"}, "roles": {"critic": {"replicas": 2}}},
            (),
            {**_ALL, "critic": 2},
            _SERVERS + 7,
            id="a critic's pods count",
        ),
        pytest.param({"transferQueue": {"storageUnits": 5}}, (), _ALL, _SERVERS + 8, id="units count"),
        pytest.param(
            {"cleanPodPolicy": "Workers"}, (ConditionType.FAILED,), _ALL, _SERVERS, id="servers stay without workers"
        ),
    ],
)
def test_a_group_has_as_many_as_the_job_needs(
    fields: dict[str, Any], conditions: tuple[ConditionType, ...], roles: dict[str, int], count: int
) -> None:
    job = changed(changed(quickstart(), **_GANG), **fields)
    assert _built(job, *conditions, **roles)[_GROUP]["spec"]["minMember"] == count


@pytest.mark.parametrize("condition", [ConditionType.SUSPENDED, ConditionType.SUCCEEDED])
def test_a_job_without_pods_has_no_group(condition: ConditionType) -> None:
    assert _GROUP not in _built(changed(quickstart(), **_GANG), condition, **_ALL)


def test_while_a_gang_gives_back_there_is_no_worker_and_its_servers_stay() -> None:
    job, status = changed(quickstart(), **_GANG), make_status(**_ALL)
    status = status.model_copy(update={"restart": status.restart.model_copy(update={"releasing": True})})
    objects = build(job, status, platform=Platform(pod_groups=True))
    replicas = {
        name: found["spec"]["replicas"] for name, found in objects.items() if "replicas" in found.get("spec", {})
    }
    assert {name for name, count in replicas.items() if count} == {
        "Deployment/quickstart-coordinator",
        "StatefulSet/quickstart-control",
        "StatefulSet/quickstart-storage",
    }
    # A scheduler that learns of new pods before it learns of a new number would place them one by one.
    assert objects[_GROUP]["spec"]["minMember"] == _SERVERS + 5


def test_a_group_comes_before_its_pods() -> None:
    names = list(_built(changed(quickstart(), **_GANG)))
    first = min(index for index, name in enumerate(names) if name.startswith(("Deployment", "StatefulSet")))
    assert names.index(_GROUP) < first


def test_an_amount_that_is_no_number_is_refused_in_a_sentence() -> None:
    patch = {"spec": {"containers": [{"name": "worker", "resources": {"requests": {"cpu": "Infinity"}}}]}}
    with pytest.raises(ValueError, match="'Infinity' is no amount"):
        _built(changed(quickstart(), **_GANG, roles={"actor": {"template": patch}}))


def test_a_group_asks_for_what_all_of_its_pods_ask_for() -> None:
    resources = {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"memory": "3Gi"}}
    roles = {"actor": {"gpus": 8, "resources": resources}, "rollout": {"gpus": 2, "replicas": 3}}
    job = changed(quickstart(), **_GANG, roles=roles)
    bare = _built(changed(quickstart(), **_GANG))[_GROUP]["spec"]["minResources"]
    given = _built(job)[_GROUP]["spec"]["minResources"]
    assert given["nvidia.com/gpu"] == "14"
    # Two more rollouts at 100m each, and an actor of two cores in the place of its 100m.
    assert value(given["cpu"]) * 1000 == value(bare["cpu"]) * 1000 + 2 * 100 + 1900
    assert int(given["memory"]) == int(bare["memory"]) + (1 << 30)


def test_a_group_that_may_preempt_others_does_not_ask_beforehand() -> None:
    job = changed(quickstart(), scheduling={"gang": "PodGroup", "priorityClassName": "high"}, **_SHARED)
    assert _built(job)[_GROUP]["spec"] == {"minMember": _SERVERS + 5}


@pytest.mark.parametrize("rule", ["Required", "Preferred"])
def test_roles_share_a_domain_and_servers_need_not(rule: str) -> None:
    job = changed(quickstart(), scheduling={"topology": {"key": "example.org/rack", "rule": rule}})
    templates = pod_templates(_built(job))
    for name, template in templates.items():
        affinity = template["spec"].get("affinity", {}).get("podAffinity", {})
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])
        preferred = [
            each["podAffinityTerm"] for each in affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
        ]
        racks = [term for term in (*required, *preferred) if term["topologyKey"] == "example.org/rack"]
        is_worker = "rljob.dev/role" in template["metadata"]["labels"]
        assert len(racks) == is_worker, name
        if not is_worker:
            continue
        assert (racks[0] in required) is (rule == "Required")
        labels = racks[0]["labelSelector"]["matchLabels"]
        # The first of them fits its own term: else no one could be the first.
        assert labels.items() <= template["metadata"]["labels"].items()
        assert labels[LABEL_JOB] == "quickstart"
    actor = templates["Deployment/quickstart-actor"]["spec"]["affinity"]["podAffinity"]
    keys = {term["topologyKey"] for term in actor["requiredDuringSchedulingIgnoredDuringExecution"]}
    assert "kubernetes.io/hostname" in keys, "it must find the coordinator again"


def test_a_patch_of_the_infrastructure_is_in_no_workers_pod() -> None:
    env = [{"name": "LOG_LEVEL", "value": "debug"}]
    patch = {
        "metadata": {"labels": {"pool": "cpu"}},
        "spec": {"nodeSelector": {"pool": "cpu"}, "containers": [{"name": "coordinator", "env": env}]},
    }
    objects = _built(changed(quickstart(), infrastructure={"template": patch}))
    for name, template in pod_templates(objects).items():
        is_server = "rljob.dev/role" not in template["metadata"]["labels"]
        assert ("nodeSelector" in template["spec"]) is is_server, name
        assert len(template["spec"]["containers"]) == 1, name
    coordinator = container(objects["Deployment/quickstart-coordinator"], "coordinator")
    assert env[0] in coordinator["env"]
    assert env[0] not in container(objects["StatefulSet/quickstart-storage"], "redis")["env"]


def test_resources_of_servers_are_those_of_the_spec_and_what_is_usual() -> None:
    given = {
        "coordinator": {"resources": {"requests": {"cpu": 2}}},
        "control": {"resources": {"limits": {"memory": "64Mi"}}},
    }
    objects = _built(changed(quickstart(), infrastructure=given))
    coordinator = container(objects["Deployment/quickstart-coordinator"], "coordinator")["resources"]
    assert coordinator == {
        "requests": {**COORDINATOR_RESOURCES["requests"], "cpu": "2"},
        "limits": COORDINATOR_RESOURCES["limits"],
    }
    control = container(objects["StatefulSet/quickstart-control"], "redis")["resources"]
    # The usual request would be above this limit.
    assert control == {"requests": {"cpu": "100m"}, "limits": {"memory": "64Mi"}}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        pytest.param(
            {"roles": {"actor": {"template": {"spec": {"schedulerName": "mine"}}}}},
            "roles.actor.template.spec.schedulerName: all pods of a gang have one scheduler. Give"
            " scheduling.schedulerName.",
            id="a scheduler of one role",
        ),
        pytest.param(
            {"infrastructure": {"template": {"metadata": {"labels": {LABEL_POD_GROUP: "mine"}}}}},
            f"infrastructure.template.metadata.labels.{LABEL_POD_GROUP}: belongs to the operator, since scheduling.gang"
            " is given. Remove it.",
            id="a group of one part",
        ),
        pytest.param(
            {"infrastructure": {"template": {"spec": {"containers": [{"name": "redis", "args": []}]}}}},
            "infrastructure.template.spec.containers[redis].args: cannot be patched: the operator starts the program."
            " Remove it.",
            id="the arguments of Redis",
        ),
        pytest.param(
            {
                "checkpoint": {"volume": {"accessMode": "ReadWriteOnce"}},
                "roles": {"actor": {"template": {"spec": {"nodeSelector": {"pool": "gpu"}}}}},
                "infrastructure": {"template": {"spec": {"nodeSelector": {"pool": "cpu"}}}},
            },
            "infrastructure.template.spec.nodeSelector.pool: 'cpu' is where the actor is not (its template has 'gpu'),"
            " and checkpoint.volume.accessMode ReadWriteOnce keeps the coordinator on the actor's node. Give"
            " ReadWriteMany and a class of storage that all nodes share, or leave this out.",
            id="a pool where the actor is not",
        ),
    ],
)
def test_what_would_tear_a_gang_apart_is_refused(fields: dict[str, Any], sentence: str) -> None:
    assert template_problems(changed(changed(quickstart(), **_GANG), **fields)) == [sentence]


def test_without_a_gang_the_same_templates_are_taken_where_the_administrator_lets_jobs_name_groups() -> None:
    options = OperatorOptions.model_validate({"workloads": {"reach": {"refusedLabels": []}}})
    patch = {"metadata": {"labels": {LABEL_POD_GROUP: "mine"}}, "spec": {"schedulerName": "mine"}}
    job = changed(quickstart(), roles={"actor": {"template": patch}})
    assert template_problems(job) == []
    made = pod_templates(build(job, options=options))
    assert made["Deployment/quickstart-actor"]["spec"]["schedulerName"] == "mine"
    assert warnings(job)
