"""The API on a real API server: what it refuses, with which words, and what may change."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from kubernetes import client, config

from rljob_api.cluster import API_GROUP, API_VERSION, RLJOB_PLURAL
from rljob_api.cluster_rules import cluster_problems
from rljob_api.manifest import ManifestError, parse_manifest
from rljob_api.revision import GROWING, REFUSED, WAY_OUT
from tests.cluster.generated_specs import edges, manifests
from tests.cluster.harness.definition import apply_job, install_definition
from tests.cluster.harness.kubectl import Kubectl, KubectlFailed
from tests.cluster.harness.machine import Cluster
from tests.unit.api.manifests import changed
from tests.unit.api.sentences import CROSS_FIELD, SINGLE_FIELDS
from tests.unit.api.test_revision import CHANGES


@pytest.fixture(scope="module", autouse=True)
def definition(cluster: Cluster) -> None:
    """The CRD of the models."""
    install_definition(cluster.kubeconfig)


@pytest.fixture(scope="module")
def team(cluster: Cluster) -> Iterator[Kubectl]:
    """A namespace for tests that leave nothing in it."""
    kubectl = Kubectl(cluster.kubeconfig)
    name = (
        kubectl(
            "create",
            "--filename=-",
            "--output=name",
            stdin=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "api-"}}),
        )
        .strip()
        .removeprefix("namespace/")
    )
    yield kubectl.within(name)
    kubectl.delete("namespace", name)


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Iterator[client.CustomObjectsApi]:
    """One connection that is kept."""
    with config.new_client_from_config(cluster.kubeconfig) as connection:  # type: ignore[no-untyped-call]
        yield client.CustomObjectsApi(connection)


@pytest.mark.parametrize(("changes", "sentence"), CROSS_FIELD)
def test_the_api_server_states_what_rljob_validate_states(
    api: client.CustomObjectsApi, team: Kubectl, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ManifestError) as refused:
        parse_manifest(yaml.safe_dump(changed(changes)), "job.yaml")
    field, _, text = sentence.partition(": ")
    assert refused.value.problems == (sentence,)
    message = _refusal(api, team.namespace, changed(changes))
    assert field in message
    assert text in message


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [row for row in SINGLE_FIELDS if "status" not in dict(row.values[0])],  # type: ignore[call-overload] # the API server drops a status
)
def test_the_api_server_refuses_what_rljob_validate_refuses(
    api: client.CustomObjectsApi, team: Kubectl, changes: dict[str, Any], sentence: str
) -> None:
    assert _refusal(api, team.namespace, changed(changes))


def test_kubectl_apply_prints_the_sentence_of_the_api_server(team: Kubectl) -> None:
    (changes, sentence) = CROSS_FIELD[0].values
    field, _, text = str(sentence).partition(": ")
    message = team.refusal(changed(changes))  # type: ignore[arg-type] # the table's first column
    assert field in message
    assert text in message


@pytest.mark.long
def test_each_field_is_accepted_at_its_edges_exactly_when_the_models_accept_it(
    api: client.CustomObjectsApi, team: Kubectl
) -> None:
    verdicts = ((title, _problems(made), _refusal(api, team.namespace, made)) for title, made in edges())
    differences = [verdict for verdict in verdicts if bool(verdict[1]) != bool(verdict[2])]
    assert not differences


def test_generated_manifests_are_accepted_exactly_when_the_models_accept_them(
    api: client.CustomObjectsApi, team: Kubectl
) -> None:
    counts = {True: 0, False: 0}

    @settings(max_examples=400, derandomize=True, database=None, deadline=None)
    @given(manifests())
    def both_agree(manifest: dict[str, Any]) -> None:
        problems = _problems(manifest)
        refusal = _refusal(api, team.namespace, manifest)
        assert bool(problems) == bool(refusal), f"{manifest}\nmodels: {problems}\nAPI server: {refusal}"
        counts[not problems] += 1

    both_agree()
    assert min(counts.values()) > 100, counts


def _problems(manifest: dict[str, Any]) -> tuple[str, ...]:
    """Those of the models, and those that a job has on a cluster only."""
    try:
        job = parse_manifest(json.dumps(manifest), "generated")
    except ManifestError as error:
        return error.problems
    return tuple(cluster_problems(job.spec, has_begun=False))


def test_what_a_set_of_an_evaluation_does_not_state_stays_unset(api: client.CustomObjectsApi, team: Kubectl) -> None:
    given = {"name": "a", "data": {"prompts": "a.jsonl", "systemPrompt": ""}, "sampling": {"temperature": 0}}
    evaluation = {"sets": [given], "everySteps": 1}
    manifest = _as_kubectl_sends_it(changed({"spec.evaluation": evaluation, "spec.data.systemPrompt": "s"}))
    where = (API_GROUP, API_VERSION, team.namespace, RLJOB_PLURAL)
    stored: Any = api.create_namespaced_custom_object(*where, manifest, dry_run="All", _request_timeout=120)
    assert stored["spec"]["evaluation"] == evaluation


def _refusal(api: client.CustomObjectsApi, namespace: str, manifest: dict[str, Any]) -> str:
    try:
        api.create_namespaced_custom_object(
            API_GROUP,
            API_VERSION,
            namespace,
            RLJOB_PLURAL,
            _as_kubectl_sends_it(manifest),
            dry_run="All",
            field_validation="Strict",
            _request_timeout=120,
        )
    except client.ApiException as error:
        if error.status not in (400, 422):
            raise
        return str(json.loads(str(error.body))["message"])
    return ""


def _as_kubectl_sends_it(value: Any) -> Any:
    """kubectl writes 512.0 as 512; sent with its point the API server would not let a rule read an integer field."""
    match value:
        case dict():
            return {key: _as_kubectl_sends_it(inner) for key, inner in value.items()}
        case list():
            return [_as_kubectl_sends_it(inner) for inner in value]
        case float() if value.is_integer():
            return int(value)
    return value


def test_what_cannot_change_is_refused_with_its_reason_and_the_way_out(kubectl: Kubectl) -> None:
    apply_job(kubectl, {})
    for row in REFUSED:
        if CHANGES[row.field] is None:
            continue
        patch = changed({f"spec.{row.field}": CHANGES[row.field]})
        with pytest.raises(KubectlFailed) as refused:
            kubectl("replace", "-f", "-", stdin=yaml.safe_dump(patch))
        assert f"spec.{row.field}: " in str(refused.value)
        assert f"{row.refusal()} {WAY_OUT}." in str(refused.value)


def test_what_may_grow_may_not_become_less(kubectl: Kubectl) -> None:
    apply_job(kubectl, {"spec.checkpoint": {"volume": {"size": "1Gi"}}})
    apply_job(kubectl, {"spec.checkpoint": {"volume": {"size": "2048Mi"}}})
    apply_job(kubectl, {"spec.checkpoint": {"volume": {"size": "2Gi"}}})
    apply_job(kubectl, {"spec.checkpoint": {"volume": {"size": 3221225472}}})
    (row,) = GROWING
    with pytest.raises(KubectlFailed) as refused:
        apply_job(kubectl, {"spec.checkpoint": {"volume": {"size": "2.5Gi"}}})
    assert f"spec.{row.field}: " in str(refused.value)
    assert row.refusal() in str(refused.value)


def test_what_may_change_does(kubectl: Kubectl) -> None:
    apply_job(kubectl, {})
    apply_job(
        kubectl, {"spec.suspend": True, "spec.image": "worker:2", "spec.training.optimizer": {"learningRate": 1e-4}}
    )
    apply_job(kubectl, {"spec.restartPolicy": {"threshold": 5}, "spec.roles.actor": {"threads": 2}})


def test_a_scaled_job_stays_scaled_when_its_manifest_is_applied_again(kubectl: Kubectl) -> None:
    """However it is applied; and the scale can be read before anybody has given it, which an autoscaler does first."""
    path = f"/apis/{API_GROUP}/{API_VERSION}/namespaces/{kubectl.namespace}/{RLJOB_PLURAL}/demo/scale"
    apply_job(kubectl, {})
    assert json.loads(kubectl("get", "--raw", path))["spec"] == {"replicas": 1}
    kubectl("scale", "rlj/demo", "--replicas=3")
    apply_job(kubectl, {})
    kubectl.apply(changed({}))
    kubectl.apply(changed({"spec.roles.actor": {}}))
    assert json.loads(kubectl("get", "--raw", path))["spec"] == {"replicas": 3}
    with pytest.raises(KubectlFailed, match="should be greater than or equal to 1"):
        kubectl("scale", "rlj/demo", "--replicas=0")
