"""Kueue's Workload of a job: sets, counts, requests; and what an admission adds to pods."""

from decimal import Decimal
from typing import Any

import pytest

from rljob_api.cluster import ANNOTATION_APPLIED, ANNOTATION_BUILT_FOR, ANNOTATION_REQUESTS
from rljob_api.quantity import value
from rljob_api.status import PodSetStatus, QueueStatus, RLJobStatus, TolerationStatus
from rljob_operator.build import Manifest
from rljob_operator.build.workload import workload
from rljob_operator.options import OperatorOptions
from tests.unit.build.jobs import OWNER, RICH_OPTIONS, build, changed, quickstart, rich, with_critic

WITH_PODS = ("Deployment", "StatefulSet")


def sets_of(made: Manifest) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in made["spec"]["podSets"]}


def asked(pod: dict[str, Any]) -> dict[str, Decimal]:
    """What a pod of the job asks for, side by side."""
    total: dict[str, Decimal] = {}
    for container in pod["containers"]:
        resources = container.get("resources", {})
        for name, amount in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
            total[name] = total.get(name, Decimal(0)) + value(amount)
    return total


def summed(pods: list[tuple[dict[str, Any], int]]) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for pod, count in pods:
        for name, amount in asked(pod).items():
            total[name] = total.get(name, Decimal(0)) + amount * count
    return total


@pytest.mark.parametrize(
    ("job", "options"),
    [
        pytest.param(quickstart(), OperatorOptions(), id="the first example"),
        pytest.param(rich(), RICH_OPTIONS, id="templates, sidecars, GPUs, an administrator's template"),
        pytest.param(with_critic(), OperatorOptions(), id="every role"),
        pytest.param(
            changed(quickstart(), telemetry={"reportTo": ["wandb", "tensorboard"]}), OperatorOptions(), id="trackers"
        ),
        pytest.param(changed(quickstart(), transferQueue={"storageUnits": 7}), OperatorOptions(), id="seven units"),
    ],
)
def test_the_workload_asks_for_all_pods_of_the_job_and_for_what_they_ask(job: Any, options: OperatorOptions) -> None:
    made = workload(job, OWNER, options, "team")
    objects = [each for each in build(job, options=options).values() if each["kind"] in WITH_PODS]
    pods = [(each["spec"]["template"]["spec"], each["spec"]["replicas"]) for each in objects]
    sets = [(each["template"]["spec"], each["count"]) for each in made["spec"]["podSets"]]
    assert sum(count for _, count in sets) == sum(count for _, count in pods)
    wanted, found = summed(pods), summed(sets)
    assert found.keys() == wanted.keys()
    others = sets_of(made)["infrastructure"]["count"]
    for name, amount in wanted.items():
        step = Decimal("0.001") if name == "cpu" else Decimal(1)
        assert amount <= found[name] <= amount + others * step, name
    assert len(sets) <= 8, "Kueue takes no more"


def test_an_autoscaled_role_asks_for_the_most_that_it_may_have() -> None:
    scaled = {"minReplicas": 1, "maxReplicas": 5}
    made = workload(changed(quickstart(), roles={"rollout": {"autoscaling": scaled}}), OWNER, OperatorOptions(), "team")
    assert sets_of(made)["rollout"]["count"] == 5


def test_a_workload_shows_nothing_that_others_must_not_read() -> None:
    text = str(workload(rich(), OWNER, RICH_OPTIONS, "team"))
    assert not any(part in text for part in ("env", "image", "volumeMounts", "secretKeyRef", "command"))


def test_what_is_asked_for_has_a_digest_that_numbers_do_not_change() -> None:
    def digests(**fields: Any) -> tuple[str, str]:
        made = workload(changed(quickstart(), **fields), OWNER, OperatorOptions(), "team")
        annotations = made["metadata"]["annotations"]
        return annotations[ANNOTATION_REQUESTS], annotations[ANNOTATION_BUILT_FOR]

    plain = digests()
    assert digests(roles={"rollout": {"replicas": 3}}) == plain
    assert digests(training={"optimizer": {"learningRate": 0.5}})[0] == plain[0]
    resources = {"requests": {"memory": "3Gi"}}
    assert digests(roles={"rollout": {"resources": resources}})[0] != plain[0]


PLACED = QueueStatus(
    name="team",
    cluster_queue="gpus",
    pod_sets=[
        PodSetStatus(
            name="rollout",
            node_selector={"pool": "spot"},
            tolerations=[TolerationStatus(key="spot", operator="Exists", effect="NoSchedule")],
            annotations={"example.org/request": "x"},
        ),
        PodSetStatus(name="actor", node_selector={"pool": "a100"}),
        PodSetStatus(name="infrastructure", node_selector={"pool": "cpu"}),
    ],
)


def placed(**fields: Any) -> dict[str, Manifest]:
    return build(changed(quickstart(), **fields), RLJobStatus(queue=PLACED))


def test_flavors_are_in_the_pods_of_their_sets() -> None:
    template = placed()["Deployment/quickstart-rollout"]["spec"]["template"]
    assert template["spec"]["nodeSelector"] == {"pool": "spot"}
    assert template["spec"]["tolerations"][0] == {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
    assert template["metadata"]["annotations"]["example.org/request"] == "x"
    assert "nodeSelector" not in placed()["Deployment/quickstart-reference"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("access", "pool"),
    [
        pytest.param("ReadWriteOnce", "a100", id="beside the actor, whose volume one node alone mounts"),
        pytest.param("ReadWriteMany", "cpu", id="where its own set has quota"),
    ],
)
def test_the_coordinator_goes(access: str, pool: str) -> None:
    made = placed(checkpoint={"volume": {"accessMode": access}})
    assert made["Deployment/quickstart-coordinator"]["spec"]["template"]["spec"]["nodeSelector"] == {"pool": pool}
    assert made["StatefulSet/quickstart-control"]["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "cpu"}


def test_another_flavor_makes_another_object_and_an_admission_without_one_the_same() -> None:
    def revisions(queue: QueueStatus | None) -> set[str]:
        made = build(quickstart(), RLJobStatus(queue=queue)).values()
        return {each["metadata"]["annotations"][ANNOTATION_BUILT_FOR] for each in made}

    def digests(queue: QueueStatus | None) -> list[str]:
        made = build(quickstart(), RLJobStatus(queue=queue)).values()
        return [each["metadata"]["annotations"][ANNOTATION_APPLIED] for each in made]

    assert revisions(PLACED) != revisions(None)
    assert digests(QueueStatus(name="team", cluster_queue="gpus")) == digests(None)
    assert revisions(PLACED) != revisions(PLACED.model_copy(update={"pod_sets": PLACED.pod_sets[:1]}))
