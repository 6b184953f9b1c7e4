"""What holds for all objects of a job, and what single ones are careful about."""

import base64
import json
import re
from typing import Any

import pytest

from rljob_api import cluster
from rljob_api.spec import RLJob
from rljob_operator.build import ClaimedBy, FoundClaims, Manifest, Platform, manifests, secret
from rljob_operator.build.parts import CONTAINERS
from rljob_operator.options import OperatorOptions
from tests.unit.build.jobs import (
    OWNER,
    RICH_OPTIONS,
    build,
    changed,
    container,
    everything,
    make_status,
    pod_templates,
    quickstart,
    rich,
)


def test_everything_is_labelled_owned_and_in_the_jobs_namespace() -> None:
    for name, found in build(rich(), options=RICH_OPTIONS, platform=Platform(pod_monitors=True)).items():
        metadata = found["metadata"]
        assert metadata["labels"][cluster.LABEL_JOB] == "rich", name
        assert metadata["namespace"] == OWNER.namespace, name
        if name == "PersistentVolumeClaim/rich-checkpoints":  # it stays when the job goes: test_checkpoint_claim.py
            continue
        (owner,) = metadata["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("RLJob", "rich", OWNER.uid, True)


def test_every_selector_selects_the_pods_it_is_for() -> None:
    objects = build(quickstart())
    for name, template in pod_templates(objects).items():
        selected = objects[name]["spec"]["selector"]["matchLabels"]
        assert selected.items() <= template["metadata"]["labels"].items(), name
        others = {other for other in pod_templates(objects) if other != name}
        for other in others:
            labels = pod_templates(objects)[other]["metadata"]["labels"]
            assert not selected.items() <= labels.items(), f"{name} selects the pods of {other}"


@pytest.mark.parametrize("job", [quickstart(), rich()], ids=["quickstart", "rich"])
def test_the_operators_containers_may_do_nothing(job: RLJob) -> None:
    for name, template in pod_templates(build(job)).items():
        pod = template["spec"]
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        for one in pod["containers"]:
            if one["name"] in CONTAINERS:
                assert one["securityContext"]["readOnlyRootFilesystem"] is True, name
                assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name


def test_the_job_file_is_the_given_job_and_parses_to_it() -> None:
    job = rich()
    text = build(job)["ConfigMap/rich-job"]["data"]["job.json"]
    parsed = RLJob.model_validate_json(text)
    assert parsed.spec == job.spec
    assert parsed.metadata.namespace == OWNER.namespace
    assert "labels" not in json.loads(text)["metadata"], "labels are not what a pod starts with"
    assert "restartPolicy" not in json.loads(text)["spec"], "a pod of an earlier version may not know a default"


def test_the_secret_holds_what_was_drawn_and_never_changes() -> None:
    made = secret(quickstart(), OWNER, token="t", password="p")
    assert made["immutable"] is True
    assert {key: base64.b64decode(value) for key, value in made["data"].items()} == {
        "token": b"t",
        "redis-password": b"p",
    }


def test_each_storage_unit_has_an_address_of_its_own() -> None:
    objects = build(rich())
    for unit in range(3):
        selected = objects[f"Service/rich-storage-{unit}"]["spec"]["selector"]
        assert selected["statefulset.kubernetes.io/pod-name"] == f"rich-storage-{unit}"
    assert "Service/rich-storage-3" not in objects


def test_a_storage_unit_has_memory_above_what_it_may_hold() -> None:
    unit = container(build(quickstart())["StatefulSet/quickstart-storage"], "redis")
    assert unit["resources"]["limits"]["memory"] == "1536Mi"
    given = changed(quickstart(), transferQueue={"redis": {"resources": {"limits": {"memory": "9Gi"}}}})
    unit = container(build(given)["StatefulSet/quickstart-storage"], "redis")
    assert unit["resources"]["limits"] == {"memory": "9Gi"}
    assert "memory" not in unit["resources"]["requests"], "Kubernetes takes the limit"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, {"cpu": "100m"}, id="a container that asks for nothing would starve on a busy node"),
        pytest.param(
            {"requests": {"memory": "1Gi"}}, {"cpu": "100m", "memory": "1Gi"}, id="beside what the user asks for"
        ),
        pytest.param({"requests": {"cpu": "2"}}, {"cpu": "2"}, id="the user's word counts"),
        pytest.param({"limits": {"cpu": "50m"}}, None, id="Kubernetes takes the limit"),
    ],
)
def test_a_worker_asks_for_cpu(given: dict[str, Any], expected: dict[str, str] | None) -> None:
    job = changed(quickstart(), roles={"actor": {"resources": given}}, transferQueue={"redis": {"resources": given}})
    objects = build(job)
    assert container(objects["Deployment/quickstart-actor"], "worker")["resources"].get("requests") == expected
    unit = container(objects["StatefulSet/quickstart-storage"], "redis")["resources"]["requests"]
    assert unit.get("cpu") == (expected or {}).get("cpu")


def test_control_state_is_retained_as_the_spec_states() -> None:
    objects = build(quickstart())
    assert volumes_of_control(objects) == {"control-state": {"claimName": "data-quickstart-control-0"}}
    claim = objects["PersistentVolumeClaim/data-quickstart-control-0"]
    assert claim["spec"] == {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    job = changed(quickstart(), transferQueue={"redis": {"persistence": {"kind": "EmptyDir"}}})
    lost = build(job)["StatefulSet/quickstart-control"]["spec"]
    assert "volumeClaimTemplates" not in lost
    assert lost["template"]["spec"]["volumes"] == [{"name": "data", "emptyDir": {}}]
    assert "PersistentVolumeClaim/data-quickstart-control-0" not in build(job)


def volumes_of_control(objects: dict[str, Manifest]) -> dict[str, Any]:
    """Name of a volume of the control Redis -> its claim."""
    pod = objects["StatefulSet/quickstart-control"]["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["containers"][0]["volumeMounts"]] == [pod["volumes"][0]["name"]]
    return {each["name"]: each.get("persistentVolumeClaim") for each in pod["volumes"]}


def test_no_controller_makes_a_claim_that_has_no_owner_yet() -> None:
    """One that is made while its job is being deleted would stay for ever."""
    for name, each in build(rich()).items():
        assert "volumeClaimTemplates" not in each.get("spec", {}), name


def test_a_control_redis_of_release_0_2_0_stays_as_it_is() -> None:
    """A set's templates of claims, and with them the volume that it mounts, never change."""
    job, found = quickstart(), FoundClaims(control=ClaimedBy.SET)
    made = manifests(job, OWNER, make_status(), OperatorOptions(), Platform(), found)
    objects = {f"{each['kind']}/{each['metadata']['name']}": each for each in made}
    assert "PersistentVolumeClaim/data-quickstart-control-0" not in objects
    body = objects["StatefulSet/quickstart-control"]["spec"]
    assert body["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Delete", "whenScaled": "Retain"}
    (claim,) = body["volumeClaimTemplates"]
    assert (claim["metadata"]["name"], claim["metadata"]["labels"]) == ("data", body["template"]["metadata"]["labels"])
    pod = body["template"]["spec"]
    assert "volumes" not in pod
    assert [each["name"] for each in pod["containers"][0]["volumeMounts"]] == ["data"]


def test_a_patch_of_the_volume_of_storage_units_moves_no_control_state() -> None:
    memory = {"name": "data", "emptyDir": {"medium": "Memory"}}
    objects = build(changed(quickstart(), infrastructure={"template": {"spec": {"volumes": [memory]}}}))
    assert memory in objects["StatefulSet/quickstart-storage"]["spec"]["template"]["spec"]["volumes"]
    assert volumes_of_control(objects)["control-state"] == {"claimName": "data-quickstart-control-0"}


def test_an_image_without_a_ping_has_no_liveness_probe() -> None:
    options = OperatorOptions.model_validate({"workloads": {"redisPing": []}})
    assert "livenessProbe" in container(build(rich())["StatefulSet/rich-control"], "redis")
    assert "livenessProbe" not in container(build(rich(), options=options)["StatefulSet/rich-control"], "redis")


def test_the_operators_patch_reaches_each_pod_with_the_containers_it_has() -> None:
    objects = build(rich(), options=RICH_OPTIONS)
    for name, template in pod_templates(objects).items():
        assert template["spec"]["runtimeClassName"] == "sandboxed", name
        has = [one["name"] for one in template["spec"]["containers"] if one["name"] in CONTAINERS]
        assert len(has) == 1, f"{name} has containers of other pods"
    variables = container(objects["Deployment/rich-coordinator"], "coordinator")["env"]
    assert {"name": "LOG_LEVEL", "value": "debug"} in variables


def test_the_coordinator_is_reached_by_the_operator_and_by_the_proxy() -> None:
    inside = build(rich(), options=RICH_OPTIONS)["NetworkPolicy/rich-coordinator"]["spec"]["ingress"][1]
    assert inside["from"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "rljob-system"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "rljob-operator"}},
        }
    ]
    outside = OperatorOptions.model_validate({"coordinatorAccess": "Proxy"})
    assert build(rich(), options=outside)["NetworkPolicy/rich-coordinator"]["spec"]["ingress"][1] == {
        "ports": [{"port": cluster.COORDINATOR_PORT}]
    }


@pytest.mark.parametrize(
    ("scraper", "peers"),
    [
        pytest.param(None, [], id="by default nothing scrapes"),
        pytest.param("monitoring", [{"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}], id="a namespace"),
        pytest.param("*", [{}], id="any namespace, by name"),
    ],
)
def test_pods_of_others_reach_the_port_of_metrics_alone(scraper: str | None, peers: list[dict[str, Any]]) -> None:
    """Neither the API of the coordinator, nor a port that the kubelet probes: half requests would be costly there."""
    options = OperatorOptions.model_validate({"workloads": {"scraperNamespace": scraper}})
    made = build(rich(), options=options)
    own = {"podSelector": {"matchLabels": {cluster.LABEL_JOB: "rich"}}}
    for name in ("rich-coordinator", "rich-workers", "rich-control", "rich-storage"):
        rules = made[f"NetworkPolicy/{name}"]["spec"]["ingress"]
        others = [rule for rule in rules if own not in rule["from"] and "podSelector" not in rule["from"][0]]
        scrapes = [] if name in ("rich-control", "rich-storage") else peers
        ports = [{"port": cluster.METRICS_PORT}]
        assert others == [{"ports": ports, "from": [{"namespaceSelector": peer}]} for peer in scrapes], name
        assert all("ports" not in rule for rule in rules if own in rule["from"])


def test_the_kubelet_probes_a_port_that_nothing_else_is_given() -> None:
    made = build(rich(), options=OperatorOptions.model_validate({"workloads": {"scraperNamespace": "*"}}))
    for name in ("rich-coordinator", "rich-actor", "rich-rollout"):
        (pod,) = made[f"Deployment/{name}"]["spec"]["template"]["spec"]["containers"][:1]
        ports = {port["name"]: port["containerPort"] for port in pod["ports"]}
        assert ports["probes"] == cluster.PROBE_PORT
        assert ports["metrics"] == cluster.METRICS_PORT
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert pod[probe]["httpGet"]["port"] == "probes"
    given = {
        port["port"]
        for key, policy in made.items()
        if key.startswith("NetworkPolicy/")
        for rule in policy["spec"].get("ingress", ())
        for port in rule.get("ports", ())
    }
    assert cluster.PROBE_PORT not in given


def test_isolation_can_be_left_to_others() -> None:
    options = OperatorOptions.model_validate({"workloads": {"isolation": "None"}})
    assert not [name for name in build(rich(), options=options) if name.startswith("NetworkPolicy/")]


def test_a_monitor_is_made_only_where_it_is_known() -> None:
    assert "PodMonitor/rich" not in build(rich())
    made = build(rich(), options=RICH_OPTIONS, platform=Platform(pod_monitors=True))["PodMonitor/rich"]
    assert made["metadata"]["labels"]["release"] == "prometheus"
    assert all(endpoint["honorLabels"] for endpoint in made["spec"]["podMetricsEndpoints"])


def test_a_monitor_finds_workers_of_before_an_upgrade_by_their_earlier_port() -> None:
    """They have it as `http`, which is the name of other ports, too."""
    made = build(rich(), options=RICH_OPTIONS, platform=Platform(pod_monitors=True))["PodMonitor/rich"]
    now, before = made["spec"]["podMetricsEndpoints"]
    assert (now["port"], before["port"]) == ("metrics", "http")
    assert {key: now[key] for key in ("path", "honorLabels")} == {key: before[key] for key in ("path", "honorLabels")}
    (rule,) = before["relabelings"]
    assert rule["action"] == "keep"
    assert rule["sourceLabels"] == ["__meta_kubernetes_pod_container_port_number"]
    assert re.fullmatch(rule["regex"], str(cluster.METRICS_PORT))
    assert not re.fullmatch(rule["regex"], str(cluster.COORDINATOR_PORT))


def test_every_name_made_of_the_longest_one_of_a_job_is_that_of_a_service() -> None:
    """The strictest of Kubernetes' kinds; a StatefulSet's pods carry its name and a digest of ten in a label."""
    job = changed(rich(), transferQueue={"storageUnits": 64})
    longest = job.model_copy(update={"metadata": job.metadata.model_copy(update={"name": "a" * 40})})
    made = everything(longest, RICH_OPTIONS, Platform(pod_monitors=True))
    for found in made:
        name, kind = found["metadata"]["name"], found["kind"]
        assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name), (kind, name)
        assert kind != "StatefulSet" or len(name) <= 52, name
    assert {"Service", "Deployment", "StatefulSet", "Secret", "ConfigMap"} <= {found["kind"] for found in made}


@pytest.mark.parametrize(("given", "seconds"), [(None, 900), (1800, 1800)], ids=["by default", "as the job says"])
def test_whatever_imports_has_as_long_as_a_slow_machine_needs(given: int | None, seconds: int) -> None:
    engine = {} if given is None else {"startupTimeoutSeconds": given}
    templates = pod_templates(build(changed(quickstart(), roles={"rollout": {"engine": engine}})))
    for name in ("Deployment/quickstart-coordinator", "Deployment/quickstart-rollout", "Deployment/quickstart-actor"):
        probe = templates[name]["spec"]["containers"][0]["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] == seconds, name
