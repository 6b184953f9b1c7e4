"""The PodMonitor by which a Prometheus operator finds the metrics of workers and coordinator."""

from rljob_api import cluster
from rljob_operator.build.metadata import manifest
from rljob_operator.build.parts import Manifest, Site

_LABELS = [cluster.LABEL_JOB, cluster.LABEL_COMPONENT, cluster.LABEL_ROLE]


def pod_monitor(site: Site) -> Manifest:
    """Named as the job is. Redis pods have no port of this name, and so no target."""
    spec = {
        "selector": {"matchLabels": {cluster.LABEL_JOB: site.name}},
        "podTargetLabels": _LABELS,
        # Else the label `job`, by which each series names its job, would be the scraper's own word for this monitor.
        "podMetricsEndpoints": [{"port": "http", "path": "/metrics", "honorLabels": True}],
    }
    kind = ("monitoring.coreos.com/v1", "PodMonitor")
    return manifest(site, kind, site.name, {"spec": spec}, labels=site.workloads.monitor_labels)
