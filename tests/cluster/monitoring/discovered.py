"""Whom a Prometheus may ask in a namespace, with the labels that its discovery for Kubernetes gives. Pure."""

import re
from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]


def of_pods(pods: list[Object]) -> list[Object]:
    """The role `pod`: a target for each port of each container."""
    return [
        _target(
            pod, f"{pod['status']['podIP']}:{port['containerPort']}", _of_port(container, port, port["containerPort"])
        )
        for pod in pods
        if pod["status"].get("podIP")
        for container in pod["spec"]["containers"]
        for port in container.get("ports", ())
    ]


def of_slices(slices: list[Object], services: list[Object], pods: list[Object]) -> list[Object]:
    """The role `endpointslice`: a target for each port of each endpoint, with the labels of Service and pod."""
    by_name = {each["metadata"]["name"]: each for each in services}
    of_pod = {each["metadata"]["name"]: each for each in pods}
    found = []
    for each in slices:
        service = by_name.get(each["metadata"]["labels"].get("kubernetes.io/service-name", ""))
        for address, pod, port in _endpoints(each, of_pod):
            if service is not None:
                labels = {
                    "__meta_kubernetes_service_name": service["metadata"]["name"],
                    "__meta_kubernetes_endpointslice_port_name": port["name"],
                    **_labels("service", service),
                    **_of_port(pod["spec"]["containers"][0], port, port["port"]),
                }
                found.append(_target(pod, f"{address}:{port['port']}", labels))
    return found


def _endpoints(each: Object, pods: dict[str, Object]) -> Iterator[tuple[str, Object, Object]]:
    for endpoint in each.get("endpoints") or ():
        pod = pods.get(endpoint.get("targetRef", {}).get("name", ""))
        for port in each.get("ports") or ():
            if pod is not None:
                yield endpoint["addresses"][0], pod, port


def _target(pod: Object, address: str, labels: dict[str, str]) -> Object:
    own = {
        "__meta_kubernetes_namespace": pod["metadata"]["namespace"],
        "__meta_kubernetes_pod_name": pod["metadata"]["name"],
        "__meta_kubernetes_pod_phase": pod["status"]["phase"],
        **_labels("pod", pod),
    }
    return {"targets": [address], "labels": {**own, **labels}}


def _of_port(container: Object, port: Object, number: int) -> dict[str, str]:
    return {
        "__meta_kubernetes_pod_container_name": container["name"],
        "__meta_kubernetes_pod_container_port_name": port.get("name", ""),
        "__meta_kubernetes_pod_container_port_number": str(number),
    }


def _labels(kind: str, found: Object) -> dict[str, str]:
    labels = found["metadata"].get("labels") or {}
    return {
        f"__meta_kubernetes_{kind}_label_{re.sub('[^a-zA-Z0-9_]', '_', name)}": text for name, text in labels.items()
    }
