"""The CRDs and the RLJobs that tests put on a cluster. Called by tests alone."""

import subprocess
from typing import Any

import yaml

from rljob_api.cluster import API_GROUP, RLJOB_PLURAL
from rljob_api.generate.crd import crd_text
from tests.cluster.harness.kubectl import Kubectl, KubectlFailed, Object
from tests.cluster.harness.machine import NODE
from tests.unit.api.manifests import changed


def install_definition(kubeconfig: str) -> None:
    """The CRD as the models have it now. The API server takes it only if its rules are within its budget."""
    kubectl = Kubectl(kubeconfig)
    kubectl.wait("the API server to take the definition", lambda: _is_applied(kubectl))
    kubectl.wait_for("crd", f"{RLJOB_PLURAL}.{API_GROUP}", "to be established", _is_established)
    # By this kubectl knows what an RLJob is; the API server says it a moment later than that it is established.
    kubectl.wait(
        "RLJobs to be known by name", lambda: RLJOB_PLURAL in kubectl("api-resources", f"--api-group={API_GROUP}")
    )


def install_monitors() -> None:
    """The definitions of ServiceMonitor, PodMonitor and PrometheusRule, on this machine's cluster. They stay."""
    subprocess.run([NODE / "monitoring.sh"], check=True, timeout=300)


def apply_job(kubectl: Kubectl, changes: dict[str, Any]) -> None:
    """The good manifest with some changes, as a user applies it."""
    kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(changed(changes)))


def _is_applied(kubectl: Kubectl) -> bool:
    """False where a busy API server has not come to an end with it: it is asked again."""
    try:
        kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=crd_text())
    except KubectlFailed as error:
        if "(Timeout)" not in str(error):
            raise
        return False
    return True


def _is_established(definition: Object) -> bool:
    # `kubectl wait` fails on a definition that is so new that it has no conditions yet.
    conditions = definition.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
