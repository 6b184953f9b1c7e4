"""The CRD and the RLJobs that tests of the API put on a cluster. Called by tests alone."""

from typing import Any

import yaml

from rljob_api.crd import GROUP, PLURAL, crd_text
from tests.cluster.harness.kubectl import Kubectl
from tests.unit.api.manifests import changed


def install_definition(kubeconfig: str) -> None:
    """The CRD as the models have it now. The API server takes it only if its rules are within its budget."""
    kubectl = Kubectl(kubeconfig)
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=crd_text())
    kubectl("wait", "--for=condition=Established", f"crd/{PLURAL}.{GROUP}", "--timeout=60s")


def apply_job(kubectl: Kubectl, changes: dict[str, Any]) -> None:
    """The good manifest with some changes, as a user applies it."""
    kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(changed(changes)))
