"""The pods of trackers have what they need and nothing else, and nothing of a job waits for them."""

from typing import Any

import pytest

from rljob_api import cluster
from rljob_api.cluster import LABEL_POD_GROUP
from rljob_api.spec import RLJob
from rljob_api.status import ConditionType
from rljob_operator.build import Platform
from rljob_operator.build.template_rules import template_problems
from tests.unit.build.jobs import build, changed, container, make_status, pod_templates, quickstart

SHARED = {"checkpoint": {"volume": {"accessMode": "ReadWriteMany"}}}


def tracked(*trackers: str, **fields: Any) -> RLJob:
    keys = {} if trackers == ("tensorboard",) else {"keysFrom": {"secretName": "keys"}}
    return changed(quickstart(), telemetry={"reportTo": list(trackers), **keys}, **fields)


def test_only_what_logs_in_has_the_secret_and_nothing_of_a_tracker_has_the_jobs_own() -> None:
    objects = build(tracked("wandb", "tensorboard", "trackio"))
    with_keys = {
        name
        for name, template in pod_templates(objects).items()
        if any("keys" in str(one.get("envFrom", "")) for one in template["spec"]["containers"])
    }
    assert with_keys == {"Deployment/quickstart-tracker-wandb", "Deployment/quickstart-tracker-trackio"}
    for name in ("wandb", "tensorboard", "trackio"):
        pod = objects[f"Deployment/quickstart-tracker-{name}"]
        volumes = pod["spec"]["template"]["spec"]["volumes"]
        assert not any("secret" in volume for volume in volumes)
        mounts = container(pod, "tracker")["volumeMounts"]
        written = [mount["mountPath"] for mount in mounts if not mount.get("readOnly")]
        assert written == [f"{cluster.RUN_DIR}/trackers", "/tmp"]


def test_no_one_reaches_a_tracker_and_one_of_files_reaches_no_one() -> None:
    objects = build(tracked("wandb", "tensorboard"))
    policies = {name: objects[f"NetworkPolicy/quickstart-tracker-{name}"]["spec"] for name in ("wandb", "tensorboard")}
    assert all(policy["policyTypes"] == ["Ingress", "Egress"] for policy in policies.values())
    assert all("ingress" not in policy for policy in policies.values())
    assert (policies["wandb"]["egress"], policies["tensorboard"].get("egress")) == ([{}], None)


def test_a_tracker_counts_in_no_gang_and_no_budget() -> None:
    job = tracked("tensorboard", scheduling={"gang": "PodGroup"}, **SHARED)
    with_groups = Platform(pod_groups=True)
    objects, without = (build(each, platform=with_groups) for each in (job, changed(job, telemetry={"reportTo": None})))
    group, tracker = "PodGroup/quickstart", objects["Deployment/quickstart-tracker-tensorboard"]
    assert objects[group]["spec"] == without[group]["spec"]
    metadata = tracker["spec"]["template"]["metadata"]
    assert LABEL_POD_GROUP not in metadata["labels"]
    assert set(metadata["annotations"]) == {cluster.ANNOTATION_TEMPLATE}
    (selected,) = objects["PodDisruptionBudget/quickstart"]["spec"]["selector"]["matchExpressions"]
    assert selected == {"key": cluster.LABEL_COMPONENT, "operator": "NotIn", "values": ["tracker-tensorboard"]}
    assert without["PodDisruptionBudget/quickstart"]["spec"]["selector"] == {
        "matchLabels": {cluster.LABEL_JOB: "quickstart"}
    }


def test_a_job_without_trackers_has_the_same_pods() -> None:
    job = tracked("tensorboard")
    before = pod_templates(build(changed(job, telemetry={"reportTo": None})))
    after = pod_templates(build(job))
    assert after.keys() - before.keys() == {"Deployment/quickstart-tracker-tensorboard"}
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    ("conditions", "replicas"),
    [((), 1), ((ConditionType.SUSPENDED,), 0), ((ConditionType.SUCCEEDED,), 0), ((ConditionType.FAILED,), 0)],
)
def test_it_goes_when_its_job_is_over(conditions: tuple[ConditionType, ...], replicas: int) -> None:
    objects = build(tracked("tensorboard"), make_status(*conditions, actor=1))
    assert objects["Deployment/quickstart-tracker-tensorboard"]["spec"]["replicas"] == replicas


def test_a_volume_that_no_other_pod_sees_is_refused() -> None:
    volumes = {"actor": {"template": {"spec": {"volumes": [{"name": "run", "emptyDir": {}}]}}}}
    assert template_problems(tracked("tensorboard", roles=volumes)) == [
        "telemetry.reportTo: trackers read and write the checkpoint volume, but emptyDir in"
        " roles.actor.template.spec.volumes[run] is each pod's own. Leave that volume to checkpoint.volume, or remove"
        " reportTo."
    ]
    assert template_problems(changed(quickstart(), roles=volumes)) == []
