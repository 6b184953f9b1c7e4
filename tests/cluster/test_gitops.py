"""How Flux, kpt and Argo CD read a job, and how kustomize renames what it carries, by their own programs."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.machine import NODE, REPOSITORY
from tests.unit.core.job_states import STATES

HEALTH = REPOSITORY / "helm/gitops/argocd-health.lua"
BUILD_SECONDS = 900.0

CONFIG_MAP = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: demo}
spec:
  image: worker
  transferQueue: {redis: {image: redis}}
  telemetry: {keysFrom: {secretName: keys}}
  roles:
    rollout:
      template:
        spec:
          imagePullSecrets: [{name: keys}]
          volumes:
          - {name: rewards, configMap: {name: rewards}}
          - {name: more, projected: {sources: [{configMap: {name: rewards}}]}}
          containers:
          - {name: rollout, env: [{name: A, valueFrom: {configMapKeyRef: {name: rewards, key: a}}}]}
"""

KUSTOMIZATION = """
resources: [job.yaml]
configurations: [kustomize.yaml]
configMapGenerator: [{name: rewards, literals: [a=b]}]
secretGenerator: [{name: keys, literals: [KEY=secret]}]
images:
- {name: worker, newName: registry.example/worker, newTag: "7"}
- {name: redis, newTag: "8"}
namePrefix: team-
"""


@pytest.mark.long
def test_kstatus_and_argo_cd_read_each_state_as_the_table_states() -> None:
    lines = "".join(json.dumps(state.job()) + "\n" for state in STATES.values())
    command = [str(NODE / "gitops.sh"), str(HEALTH)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    read = {name: (one["kstatus"], one["argo"]) for name, one in zip(STATES, found, strict=True)}
    assert read == {name: (state.kstatus, state.argo) for name, state in STATES.items()}
    refused = found[list(STATES).index("a refused job")]
    assert refused["message"] == refused["argoMessage"] == "the Service demo-actor is not the job's"


def test_kustomize_renames_what_a_job_carries(kubectl: Kubectl, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(CONFIG_MAP)
    (tmp_path / "kustomization.yaml").write_text(KUSTOMIZATION)
    (tmp_path / "kustomize.yaml").write_text((REPOSITORY / "helm/gitops/kustomize.yaml").read_text())
    made = {each["kind"]: each for each in yaml.safe_load_all(kubectl("kustomize", str(tmp_path)))}
    rewards, keys = made["ConfigMap"]["metadata"]["name"], made["Secret"]["metadata"]["name"]
    spec = made["RLJob"]["spec"]
    pod = spec["roles"]["rollout"]["template"]["spec"]
    assert rewards.startswith("team-rewards-")
    assert keys.startswith("team-keys-")
    assert pod["volumes"][0]["configMap"]["name"] == rewards
    assert pod["volumes"][1]["projected"]["sources"][0]["configMap"]["name"] == rewards
    assert pod["containers"][0]["env"][0]["valueFrom"]["configMapKeyRef"]["name"] == rewards
    assert spec["telemetry"]["keysFrom"]["secretName"] == keys
    assert pod["imagePullSecrets"] == [{"name": keys}]
    assert spec["image"] == "registry.example/worker:7"
    assert spec["transferQueue"]["redis"]["image"] == "redis:8"
