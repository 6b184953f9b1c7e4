"""The folder of this machine behind a claim, so that a test reads what a job left: its sample log, its checkpoints.

Needs the cluster of this machine, whose volumes are folders. Reads only.
"""

import json
from pathlib import Path

from rljob_api import cluster
from rljob_api.spec import RLJobSpec
from rljob_cli.jobs.sample_log import AuditReport, audit_run, read_lines
from tests.cluster.harness.kubectl import Kubectl


def folder_of_claim(kubectl: Kubectl, claim: str) -> Path:
    """Where the bytes of a bound claim lie."""
    found = kubectl.wait_for("persistentvolumeclaim", claim, "to be bound", lambda it: it["spec"].get("volumeName"))
    volume = kubectl.get("persistentvolume", found["spec"]["volumeName"])
    assert volume is not None, f"the claim {claim} names the volume {found['spec']['volumeName']}, which is not there"
    return Path(volume["spec"]["local"]["path"])


def audit_job(kubectl: Kubectl, name: str) -> AuditReport:
    """What the sample log of a job proves, as far as its checkpoints go, or to its end if it succeeded."""
    found = kubectl.get("rljob", name)
    assert found is not None, f"there is no RLJob {name} in {kubectl.namespace}"
    spec = RLJobSpec.model_validate_json(json.dumps(found["spec"]))
    status = found.get("status", {})
    done = status.get("phase") == "Succeeded"
    steps = spec.rollout.num_rollouts if done else status.get("training", {}).get("checkpoint") or 0
    folder = folder_of_claim(kubectl, cluster.checkpoint_claim_name(name))
    return audit_run(folder, spec, steps=steps)


def trained_steps(kubectl: Kubectl, name: str) -> int:
    """How many steps the sample log of a job has, whatever its status says."""
    log = folder_of_claim(kubectl, cluster.checkpoint_claim_name(name)) / "samples.jsonl"
    return len({line.step for line in read_lines(log)})
