"""The operator's rights, by the API server's own record: nothing that is not granted is asked, every grant is used.

One job goes through all that makes the operator write: applied, shrunk, restarted by new pods, changed, ended, deleted.
"""

import json

import pytest

from rljob_api.cluster import deployment_name, storage_unit_name
from rljob_api.names import Role
from tests.cluster.chart.release import OPERATOR, Release
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.machine import Node
from tests.cluster.harness.rljob import ClusterJob, make_small_job, slowed

pytestmark = pytest.mark.timeout(900)

Right = tuple[str, str, str]
"""API group, resource (with its subresource), verb."""

SPARED: dict[Right, str] = (
    {
        ("networking.k8s.io", "networkpolicies", "delete"): "when the administrator turns isolation off",
        ("", "configmaps", "delete"): "when somebody has made the job's immutable",
        ("rljob.dev", "rljobs", "get"): "when somebody else has written the status",
        ("", "events", "patch"): "when a sentence is told again",
        ("apps", "replicasets", "get"): "when pods of an earlier job of this name stay",
    }
    | {
        (group, resource, "get"): "when somebody else has the name"
        for group, resource in (
            ("", "services"),
            ("", "configmaps"),
            ("", "persistentvolumeclaims"),
            ("policy", "poddisruptionbudgets"),
            ("networking.k8s.io", "networkpolicies"),
        )
    }
    | {
        (group, resource, verb): why
        for group, resource, why in (
            ("monitoring.coreos.com", "podmonitors", "there is no Prometheus operator here"),
            ("scheduling.x-k8s.io", "podgroups", "when a job has a gang"),
            ("resource.k8s.io", "resourceclaimtemplates", "when a role claims devices of a class"),
        )
        for verb in ("get", "list", "watch", "create", "patch", "delete")
    }
)
"""Grants that this job does not use, and when they are."""


def test_every_right_is_used_and_none_is_missed(kubectl: Kubectl, node: Node, release: Release) -> None:
    release.install()
    _run_a_whole_incarnation(kubectl)
    asked, refused = _asked(node, f"system:serviceaccount:{kubectl.namespace}:{OPERATOR}")
    granted = _granted(kubectl)
    assert refused == []
    assert granted - asked - set(SPARED) == set()
    assert asked - granted == set()


def _run_a_whole_incarnation(kubectl: Kubectl) -> None:
    manifest = make_small_job(
        rollout={"numRollouts": 1_000_000},
        roles={"reference": {}, "advantages": {}, "rollout": {"replicas": 2}},
        transferQueue={"storageUnits": 2},
        restartPolicy={"mechanism": "Recreate", "heartbeatTimeoutSeconds": 60, "stallTimeoutSeconds": 600},
    )
    job = ClusterJob(kubectl, slowed(manifest)).apply()
    job.wait_true("Ready")
    job.change({"roles": {"rollout": {"replicas": 1}}})  # the pod that goes is marked
    job.wait("one rollout", lambda: len(job.pods(role="rollout")) == 1)
    job.restart_request("advantages")  # Recreate: the pod is deleted
    job.wait_event("RestartRequested")
    job.change({"roles": {"reference": None}, "transferQueue": {"storageUnits": 1}})  # a Deployment and a Service go
    gone = (("deployment", deployment_name(job.name, Role.REFERENCE)), ("service", storage_unit_name(job.name, 1)))
    for kind, name in gone:
        kubectl.wait_gone(kind, name)
    job.wait_epoch_ready(2)
    job.change({"rollout": {"numRollouts": 1}, "ttlSecondsAfterFinished": 0})
    kubectl.wait_gone("rljob", job.name)


def _asked(node: Node, who: str) -> tuple[set[Right], list[str]]:
    """What a user has asked for, and what it was refused for good, by the audit log.

    An API server grants a new binding to its subject a moment after it stored it: what is answered later is no refusal.
    """
    asked: set[Right] = set()
    refused: set[str] = set()
    answered: set[str] = set()
    for file in sorted(node.audit_log.parent.glob("audit*.log")):
        for line in file.read_text().split("\n")[:-1]:  # the last one may be half written: the cluster goes on
            if who not in line:
                continue
            entry = json.loads(line)
            target = entry.get("objectRef", {})
            if not target.get("resource"):
                continue  # discovery, which everybody may read
            parts = [target["resource"], *([target["subresource"]] if target.get("subresource") else [])]
            code = entry.get("responseStatus", {}).get("code")
            (refused if code == 403 else answered).add(f"{entry['verb']} {entry['requestURI']}")
            asked.add((target.get("apiGroup", ""), "/".join(parts), entry["verb"]))
            if code == 201 and entry["verb"] == "patch":  # an apply that found nothing
                asked.add((target.get("apiGroup", ""), "/".join(parts), "create"))
    return asked, sorted(refused - answered)


def _granted(kubectl: Kubectl) -> set[Right]:
    bound = {
        binding["roleRef"]["name"]
        for binding in kubectl.all("clusterrolebindings")
        for subject in binding.get("subjects", [])
        if (subject["name"], subject.get("namespace")) == (OPERATOR, kubectl.namespace)
    }
    cluster_roles = [role for role in kubectl.all("clusterroles") if role["metadata"]["name"] in bound]
    rules = [rule for role in [*kubectl.all("roles"), *cluster_roles] for rule in role["rules"]]
    assert rules, "the chart has made no Role"
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
