"""Prometheus' scrape configuration for ServiceMonitors and PodMonitors, as the Prometheus operator makes it of them.

Pure. Only what our monitors use: a selector of labels, target labels of the pod, and endpoints with port, path,
honorLabels and relabelings that keep. Debian's Prometheus does not know Kubernetes, so that whom it may ask comes from
a file (`discovered`).
"""

import re
from typing import Any

Object = dict[str, Any]

TARGETS = "/targets"
"""The folder of these files: one for each namespace and role of Prometheus' service discovery."""


def scrape_configs(monitors: list[Object], interval: str) -> list[Object]:
    """One for each endpoint of each monitor, asked every `interval` whatever the monitor says."""
    return [
        _pods(monitor, endpoint, interval)
        if monitor["kind"] == "PodMonitor"
        else _services(monitor, endpoint, interval)
        for monitor in monitors
        for endpoint in monitor["spec"].get("podMetricsEndpoints", monitor["spec"].get("endpoints"))
    ]


def _pods(monitor: Object, endpoint: Object, interval: str) -> Object:
    text = "__meta_kubernetes_pod"
    rules = [
        *_selected(monitor, f"{text}_label"),
        _keep(f"{text}_container_port_name", endpoint["port"]),
        _replace(f"{text}_container_name", "container"),
        *(
            _replace(f"{text}_label_{_identifier(label)}", _identifier(label))
            for label in monitor["spec"].get("podTargetLabels", ())
        ),
        {"target_label": "job", "replacement": f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"},
    ]
    return _config(monitor, endpoint, interval, "pod", rules)


def _services(monitor: Object, endpoint: Object, interval: str) -> Object:
    rules = [
        *_selected(monitor, "__meta_kubernetes_service_label"),
        _keep("__meta_kubernetes_endpointslice_port_name", endpoint["port"]),
        _replace("__meta_kubernetes_pod_container_name", "container"),
        _replace("__meta_kubernetes_service_name", "service"),
        _replace("__meta_kubernetes_service_name", "job"),
    ]
    return _config(monitor, endpoint, interval, "endpointslice", rules)


def _config(monitor: Object, endpoint: Object, interval: str, role: str, rules: list[Object]) -> Object:
    name, namespace = monitor["metadata"]["name"], monitor["metadata"]["namespace"]
    return {
        "job_name": f"{monitor['kind']}/{namespace}/{name}/{endpoint['port']}",
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "metrics_path": endpoint["path"],
        "honor_labels": endpoint.get("honorLabels", False),
        "file_sd_configs": [{"files": [f"{TARGETS}/{namespace}-{role}.json"], "refresh_interval": "2s"}],
        "relabel_configs": [
            *rules,
            *(
                {"source_labels": rule["sourceLabels"], "regex": rule["regex"], "action": rule["action"]}
                for rule in endpoint.get("relabelings", ())
            ),
            _replace("__meta_kubernetes_namespace", "namespace"),
            _replace("__meta_kubernetes_pod_name", "pod"),
            {"target_label": "endpoint", "replacement": endpoint["port"]},
            # What has ended is no target.
            {"source_labels": ["__meta_kubernetes_pod_phase"], "regex": "(Failed|Succeeded)", "action": "drop"},
        ],
    }


def _selected(monitor: Object, prefix: str) -> list[Object]:
    wanted = monitor["spec"]["selector"]["matchLabels"]
    return [_keep(f"{prefix}_{_identifier(label)}", value) for label, value in wanted.items()]


def _keep(label: str, value: str) -> Object:
    return {"source_labels": [label], "regex": re.escape(value).replace("\\-", "-"), "action": "keep"}


def _replace(label: str, target: str) -> Object:
    return {"source_labels": [label], "target_label": target}


def _identifier(label: str) -> str:
    """As Prometheus writes the name of a label of Kubernetes."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)
