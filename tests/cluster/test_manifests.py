"""The manifests of a job before a real API server: every field is known to it, restricted pods are let in, and nothing
is left when the job is deleted. No pod has to run for that.
"""

import json

import pytest
import yaml

from rljob_api.cluster import checkpoint_claim_name
from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_operator.build import Manifest, Owner, Platform, manifests, secret
from rljob_operator.options import OperatorOptions
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl
from tests.unit.build.jobs import EXAMPLES, RICH_OPTIONS, quickstart, rich

_JOBS = [
    pytest.param(quickstart(), OperatorOptions(), id="quickstart"),
    pytest.param(rich(), RICH_OPTIONS, id="rich"),
]
_NO_ONE = "0a1b2c3d-0000-4000-8000-000000000000"


def _objects(job: RLJob, kubectl: Kubectl, options: OperatorOptions, uid: str = _NO_ONE) -> list[Manifest]:
    owner = Owner(namespace=kubectl.namespace, uid=uid)
    drawn = secret(job, owner, token="token", password="password")
    return [drawn, *manifests(job, owner, RLJobStatus(), options, Platform())]


def _apply(kubectl: Kubectl, objects: list[Manifest], *arguments: str) -> str:
    """As the operator applies: server-side, by its field manager, unknown fields refused."""
    command = ("apply", "--server-side", "--field-manager=rljob-operator", "--validate=strict", *arguments, "-f", "-")
    return kubectl(*command, stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


@pytest.mark.parametrize(("job", "options"), _JOBS)
def test_the_api_server_takes_every_object(kubectl: Kubectl, job: RLJob, options: OperatorOptions) -> None:
    objects = _objects(job, kubectl, options)
    message = _apply(kubectl, objects, "--dry-run=server")
    assert len(message.splitlines()) == len(objects), message


@pytest.mark.parametrize("job", [quickstart(), rich()], ids=["quickstart", "rich"])
def test_pods_meet_the_restricted_standard(kubectl: Kubectl, job: RLJob) -> None:
    kubectl("label", "namespace", kubectl.namespace, "pod-security.kubernetes.io/enforce=restricted")
    owners = [found for found in _objects(job, kubectl, OperatorOptions()) if "template" in found.get("spec", {})]
    assert len(owners) == 8 + len(job.spec.telemetry.report_to or ())
    pods = [_pod(found) for found in owners]
    assert _apply(kubectl, pods, "--dry-run=server").count("\n") == len(pods)


def _pod(owner: Manifest) -> Manifest:
    """A pod as the owner's controller would make it."""
    template = owner["spec"]["template"]
    # The class is the user's: this cluster has none of that name, and Pod Security does not ask for it.
    spec = {key: value for key, value in template["spec"].items() if key != "priorityClassName"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": owner["metadata"]["name"]},
        "spec": spec,
    }


def test_applying_again_changes_nothing_and_deletion_leaves_the_checkpoints_alone(kubectl: Kubectl) -> None:
    install_definition(kubectl.kubeconfig)
    given = yaml.safe_load((EXAMPLES / "quickstart.yaml").read_text())
    # Another controller's: no operator that serves this namespace shall touch it.
    kubectl.apply({**given, "spec": {**given["spec"], "managedBy": "example.org/none"}})
    owner = kubectl.get("rljob", "quickstart")
    assert owner is not None
    objects = _objects(quickstart(), kubectl, OperatorOptions(), uid=owner["metadata"]["uid"])
    _apply(kubectl, objects)
    before = _versions(kubectl, objects)
    _apply(kubectl, objects)
    changed = {name for name, version in _versions(kubectl, objects).items() if version != before[name]}
    assert changed == set(), "an object is not as it was applied: the API server fills in or orders something anew"
    kubectl.delete("rljob", "quickstart")
    kinds = sorted({found["kind"] for found in objects})
    # The garbage collector looks for new kinds, such as RLJob may be, every 30 s.
    retained = [f"persistentvolumeclaim/{checkpoint_claim_name('quickstart')}"]
    kubectl.wait("no more than its checkpoints to be left", lambda: _left(kubectl, kinds) == retained)


def _versions(kubectl: Kubectl, objects: list[Manifest]) -> dict[str, int]:
    """Generation of each object: it moves when the spec changes, and not with the status."""
    found = {}
    for manifest in objects:
        live = kubectl.get(manifest["kind"], manifest["metadata"]["name"])
        assert live is not None, manifest["metadata"]["name"]
        found[f"{manifest['kind']}/{manifest['metadata']['name']}"] = live["metadata"].get("generation", 0)
    return found


def _left(kubectl: Kubectl, kinds: list[str]) -> list[str]:
    text = kubectl("get", ",".join([*kinds, "Pod"]), "-l", "rljob.dev/job=quickstart", "-o", "name")
    return text.split()
