"""The PodDisruptionBudget: evictions take one pod of a job at a time.

One budget for all pods, since the eviction of almost any takes the whole job back to its checkpoint. It never forbids
evictions altogether: a node can always be drained. While the job restarts after the first one its pods are not ready,
and those may go at once: so a drain of a node with many pods of a job costs few restarts, and not one a pod.
"""

from rljob_api import cluster
from rljob_operator.build.metadata import manifest
from rljob_operator.build.parts import Manifest, Site


def disruption_budget(site: Site) -> Manifest:
    """The budget, named as the job is."""
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": {cluster.LABEL_JOB: site.name}},
    }
    return manifest(site, ("policy/v1", "PodDisruptionBudget"), site.name, {"spec": spec})
