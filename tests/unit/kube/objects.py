"""Pods and Deployments as the API server sends them, made of what matters to a row."""

from typing import Any

from rljob_api.cluster import ANNOTATION_TEMPLATE, LABEL_COMPONENT, LABEL_JOB, LABEL_ROLE

NOW = "2026-11-21T12:00:00Z"


NOW_SECONDS = 1795262400.0


def running(since: str = NOW) -> dict[str, Any]:
    return {"running": {"startedAt": since}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def terminated(code: int, reason: str = "Error", message: str = "", signal: int = 0) -> dict[str, Any]:
    end = {"exitCode": code, "reason": reason, "message": message, "finishedAt": NOW}
    return {"terminated": end | ({"signal": signal} if signal else {})}


def make_pod(
    state: dict[str, Any] | None = None,
    *,
    last: dict[str, Any] | None = None,
    restarts: int = 0,
    started: bool = True,
    phase: str = "Running",
    deleting: bool = False,
    template: str = "t1",
    component: str = "worker",
    role: str = "actor",
    name: str = "job-actor-0",
    uid: str = "u1",
    conditions: dict[str, tuple[str, str, str]] | None = None,
    status: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    image: str = "",
    memory: str = "",
    node: str = "node0",
) -> dict[str, Any]:
    """`conditions`: type -> (status, reason, message)."""
    container = {"name": component, "restartCount": restarts, "state": state or {}, "lastState": last or {}}
    container["started"] = started
    limits = {"limits": {"memory": memory}} if memory else {}
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": uid,
            "resourceVersion": "1",
            "creationTimestamp": NOW,
            "labels": {LABEL_JOB: "job", LABEL_COMPONENT: component, LABEL_ROLE: role},
            "annotations": {ANNOTATION_TEMPLATE: template, **(annotations or {})},
            **({"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 60} if deleting else {}),
        },
        "spec": {"nodeName": node, "containers": [{"name": component, "image": image, "resources": limits}]},
        "status": {
            "phase": phase,
            "conditions": [
                {"type": kind, "status": text, "reason": reason, "message": message, "lastTransitionTime": NOW}
                for kind, (text, reason, message) in (conditions or {}).items()
            ],
            "containerStatuses": [container] if state is not None else [],
            **(status or {}),
        },
    }
