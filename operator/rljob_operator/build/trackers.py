"""The Deployments that feed trackers, one for each of `telemetry.reportTo`: nothing of a job waits for them.

A pod has the checkpoint volume to read the record that the coordinator writes there, and one folder of it to write to;
the Secret that the user names, where its tracker logs in; and neither the job's token nor the password of Redis. Pure.
"""

from pathlib import PurePosixPath
from typing import Any

from rljob_api import cluster
from rljob_api.spec import TRACKERS_WITH_KEYS, Tracker
from rljob_api.spec.infrastructure import ResourcesSpec
from rljob_api.status import RLJobStatus
from rljob_operator.build.containers import (
    JOB,
    JOB_DIR,
    RUN,
    TEMPORARY,
    TEMPORARY_DIR,
    TERMINATION_MESSAGE,
    TRACKER_RESOURCES,
    container_security,
)
from rljob_operator.build.deployments import NO_DEADLINE, pod_identity
from rljob_operator.build.parts import (
    TRACKER_CONTAINER,
    Manifest,
    Site,
    manifest,
    selector,
    tracker_part,
    tracker_replicas,
)
from rljob_operator.build.scheduling import coordinator_placement, run_volume
from rljob_operator.build.template import pod_template

_GRACE_SECONDS = 60
"""For what it has not given yet when the job ends."""


def tracker_deployment(site: Site, status: RLJobStatus, tracker: Tracker) -> Manifest:
    """The Deployment. Two pods at a time would both give every line."""
    part = tracker_part(tracker)
    body = {
        "replicas": tracker_replicas(site, status),
        "revisionHistoryLimit": 1,
        "progressDeadlineSeconds": NO_DEADLINE,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": selector(site, part)},
        "template": pod_template(site, part, _pod(site, tracker), ResourcesSpec(), site.job.spec.image),
    }
    name = cluster.tracker_name(site.name, tracker.value)
    return manifest(site, ("apps/v1", "Deployment"), name, {"spec": body}, part)


def _pod(site: Site, tracker: Tracker) -> dict[str, Any]:
    return {
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "containers": [_container(site, tracker)],
        "volumes": [
            run_volume(site.job),
            {"name": TEMPORARY, "emptyDir": {}},
            {"name": JOB, "configMap": {"name": cluster.config_name(site.name)}},
        ],
        **coordinator_placement(site),
    }


def _container(site: Site, tracker: Tracker) -> dict[str, Any]:
    files = str(PurePosixPath(cluster.RUN_DIR) / cluster.TRACKERS_FOLDER)
    return {
        "name": TRACKER_CONTAINER,
        "image": site.workloads.worker_image,
        "imagePullPolicy": site.workloads.pull_policy.value,
        "command": [site.workloads.python, "-m", "rljob_workers.telemetry.trackers.pod"],
        "env": [
            *pod_identity(site),
            {"name": "RLJOB_TRACKER", "value": tracker.value},
            {"name": "TRACKIO_DIR", "value": f"{files}/{Tracker.TRACKIO.value}"},
        ],
        **_keys(site, tracker),
        "resources": TRACKER_RESOURCES,
        "volumeMounts": [
            {"name": RUN, "mountPath": cluster.RUN_DIR, "readOnly": True},
            {"name": RUN, "mountPath": files, "subPath": cluster.TRACKERS_FOLDER},
            {"name": TEMPORARY, "mountPath": TEMPORARY_DIR},
            {"name": JOB, "mountPath": JOB_DIR, "readOnly": True},
        ],
        "terminationMessagePolicy": TERMINATION_MESSAGE,
        **container_security(),
    }


def _keys(site: Site, tracker: Tracker) -> dict[str, Any]:
    given = site.job.spec.telemetry.keys_from
    if given is None or tracker not in TRACKERS_WITH_KEYS:
        return {}
    return {"envFrom": [{"secretRef": {"name": given.secret_name}}]}
