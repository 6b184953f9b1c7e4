"""The chart, rendered by the real helm: what it makes of which values, and which values it refuses."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from release.packages import pack_chart
from release.source import Source
from rljob_operator.options import CoordinatorAccess, OperatorOptions
from tests.cluster.chart.helm import CHART, HERE, Object, helm, objects, only, refusal, render

# Bringing the cluster up puts helm on the path.
pytestmark = pytest.mark.usefixtures("cluster")

SHAPES: dict[str, tuple[str, ...]] = {
    "default": (),
    "namespaced": ("--values", str(HERE / "namespaced.values.yaml")),
    "everything": ("--values", str(HERE / "everything.values.yaml")),
}
SHAPE = pytest.mark.parametrize("arguments", SHAPES.values(), ids=SHAPES.keys())


def _options(manifests: list[Object]) -> OperatorOptions:
    return OperatorOptions.model_validate(yaml.safe_load(only(manifests, "ConfigMap")["data"]["operator.yaml"]))


def _rights(manifests: list[Object], kind: str) -> dict[str, set[str]]:
    """What the operator itself is granted by roles of this kind: resource -> verbs."""
    granted: dict[str, set[str]] = {}
    for role in manifests:
        if role["kind"] == kind and "aggregate-to-edit" not in str(role["metadata"]["labels"]):
            for rule in role["rules"]:
                for resource in rule["resources"]:
                    granted.setdefault(resource, set()).update(rule["verbs"])
    return granted


def test_a_released_chart_is_rendered_as_its_folder(tmp_path: Path) -> None:
    packed = pack_chart(Source(CHART.parents[1], "1.2.3", "0" * 40, 1_700_000_000), tmp_path)
    assert render(chart=packed) == render()
    assert "kind: CustomResourceDefinition\n" in helm("template", "demo", str(packed), "--kube-version", "1.34.0")


@SHAPE
def test_helm_finds_nothing_wrong(arguments: tuple[str, ...]) -> None:
    helm("lint", "--strict", str(CHART), *arguments)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_rendered_is_the_golden(shape: str) -> None:
    golden = HERE / f"{shape}.golden.yaml"
    rendered = render(*SHAPES[shape])
    if os.environ.get("RLJOB_WRITE_GOLDENS"):
        golden.write_text(rendered)
    assert rendered == golden.read_text(), (
        "if this is wanted, run the test with RLJOB_WRITE_GOLDENS=1 and read the diff"
    )


@SHAPE
def test_the_operator_reads_the_options_as_they_are_rendered(arguments: tuple[str, ...]) -> None:
    manifests = objects(render(*arguments))
    options = _options(manifests)
    deployment = only(manifests, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    assert options.workloads.operator_labels.items() <= labels
    assert options.workloads.operator_namespace == "rl-system"
    assert options.lease is not None
    assert (options.lease.name, options.lease.namespace) == (deployment["metadata"]["name"], "rl-system")
    ports = {
        port["name"]: port["containerPort"] for port in deployment["spec"]["template"]["spec"]["containers"][0]["ports"]
    }
    assert ports == {"health": options.health_port, "metrics": options.metrics_port}


def test_every_value_of_the_options_arrives() -> None:
    options = _options(objects(render(*SHAPES["everything"])))
    assert options.workloads.pod_template["spec"]["runtimeClassName"] == "nvidia"
    assert (options.workloads.termination_grace_seconds, options.workloads.scraper_namespace) == (120, "monitoring")
    assert (options.concurrency, options.workloads.pull_secrets) == (32, ["registry"])
    assert options.jobs_per_namespace == 50
    assert options.lease is not None
    assert (options.lease.duration_seconds, options.lease.renew_seconds, options.lease.retry_seconds) == (30, 20.5, 4)
    namespaced = _options(objects(render(*SHAPES["namespaced"])))
    assert (namespaced.namespaces, namespaced.coordinator_access) == (["team-a", "team-b"], CoordinatorAccess.PROXY)


def test_new_options_roll_the_pods_and_others_do_not() -> None:
    def template(*arguments: str) -> Any:
        return only(objects(render(*arguments)), "Deployment")["spec"]["template"]

    assert template("--set", "concurrency=17") != template()
    assert template("--set", "replicas=3", "--set", "networkPolicy.create=false") == template()


def test_the_crd_is_the_generated_one_and_outlives_the_release() -> None:
    crd = only(objects(render("--set", "crd.install=true")), "CustomResourceDefinition")
    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    crd["metadata"].pop("labels")
    assert crd == yaml.safe_load((CHART / "files/rljob.dev_rljobs.yaml").read_text())


def test_the_operator_of_some_namespaces_has_no_right_outside_them() -> None:
    manifests = objects(render(*SHAPES["namespaced"]))
    roles = [each for each in manifests if each["kind"] == "Role"]
    assert {role["metadata"]["namespace"] for role in roles} == {"rl-system", "team-a", "team-b"}
    assert not [each for each in manifests if each["kind"] == "ClusterRoleBinding"]


def test_the_proxy_is_granted_only_where_it_is_used() -> None:
    assert "services/proxy" in _rights(objects(render(*SHAPES["namespaced"])), "Role")
    assert "services/proxy" not in _rights(objects(render()), "ClusterRole")


def test_secrets_are_made_and_read_by_name_but_never_listed() -> None:
    assert _rights(objects(render()), "ClusterRole")["secrets"] == {"get", "create"}


def test_nothing_is_granted_by_a_wildcard() -> None:
    for each in objects(render()):
        for rule in each.get("rules", ()):
            assert "*" not in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}, each["metadata"]["name"]


@pytest.mark.parametrize(
    ("kind", "key"),
    [("ServiceMonitor", "serviceMonitor"), ("PrometheusRule", "prometheusRule")],
    ids=["monitor", "rule"],
)
def test_monitoring_comes_where_the_cluster_knows_it(kind: str, key: str) -> None:
    known = ("--api-versions", f"monitoring.coreos.com/v1/{kind}", "--set", "networkPolicy.scraperNamespace=monitoring")
    assert kind not in {each["kind"] for each in objects(render())}
    assert kind in {each["kind"] for each in objects(render(*known))}
    assert kind in {each["kind"] for each in objects(render("--set", f"monitoring.{key}.create=Always"))}
    assert kind not in {each["kind"] for each in objects(render(*known, "--set", f"monitoring.{key}.create=Never"))}


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PrometheusRule"])
def test_monitoring_stays_away_where_a_network_policy_lets_no_prometheus_read_the_operator(kind: str) -> None:
    """Else the alert of an operator that is down would come after five minutes of a default install."""
    known = ("--api-versions", f"monitoring.coreos.com/v1/{kind}")
    assert kind not in {each["kind"] for each in objects(render(*known))}
    assert kind in {each["kind"] for each in objects(render(*known, "--set", "networkPolicy.create=false"))}


def test_alerts_ask_for_the_series_of_this_release_only() -> None:
    rule = only(objects(render(*SHAPES["everything"])), "PrometheusRule")
    operator, jobs = rule["spec"]["groups"]
    for alert in operator["rules"]:
        assert '{namespace="rl-system",service="rl"' in alert["expr"], alert["alert"]
    for alert in jobs["rules"]:
        if "rljob_operator_job_" in alert["expr"]:
            assert '{service="rl"' in alert["expr"], alert["alert"]


def test_each_dashboard_becomes_a_config_map_for_the_sidecar() -> None:
    manifests = objects(render("--set", "monitoring.dashboards.create=true"))
    for path in (CHART / "dashboards").glob("*.json"):
        board = next(each for each in manifests if path.name in each.get("data", {}))
        assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert board["data"] == {path.name: path.read_text()}
        assert len(path.read_bytes()) < 1_000_000, "a ConfigMap holds a mebibyte"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        pytest.param("replicas=0", "at '/replicas': minimum: got 0, want 1", id="no replica"),
        pytest.param("replica=2", "additional properties 'replica' not allowed", id="a name that is not there"),
        pytest.param("workloads.podtemplate=x", "at '/workloads': additional properties 'podtemplate'", id="nor below"),
        pytest.param("coordinatorAccess=Direct", "must be one of 'Service', 'Proxy'", id="a word that is not there"),
        pytest.param("concurrency=many", "at '/concurrency': got string, want integer", id="a word for a number"),
        pytest.param("jobsPerNamespace=0", "at '/jobsPerNamespace': minimum: got 0, want 1", id="no job at all"),
        pytest.param("ports.health=80", "at '/ports/health': minimum: got 80, want 1,024", id="a port of root's"),
        pytest.param("namespaces={Team_A}", "at '/namespaces/0': 'Team_A' does not match", id="no namespace's name"),
        pytest.param("image.digest=latest", "at '/image/digest': 'latest' does not match", id="no digest"),
        pytest.param("monitoring.serviceMonitor.create=true", "must be one of 'Auto', 'Always', 'Never'", id="a flag"),
        pytest.param(
            "lease.renewSeconds=30",
            "lease: durationSeconds 30, renewSeconds 30 and retrySeconds 2 must fall in this order",
            id="a lease that two could hold",
        ),
        pytest.param(
            "ports.metrics=8080", "ports.metrics: 8080 is the port of ports.health. Set another", id="one port"
        ),
    ],
)
def test_a_wrong_value_is_refused_with_a_sentence(value: str, sentence: str) -> None:
    message = refusal("template", "demo", str(CHART), "--kube-version", "1.34.0", "--set", value)
    assert sentence in message
