"""The network of a job's pods: Services and NetworkPolicies.

Services list pods that are not ready too: clients retry by themselves and connect as soon as a server listens. Workers
have none: the coordinator hands out their addresses. In: pods of the same job; the operator, to the coordinator; the
scraper, if there is one, to the port of metrics. The kubelet comes from the node, which no policy keeps out. Out: Redis
nowhere; the coordinator to the job's pods and DNS; workers anywhere, since models, data and remote rewards may be
anywhere. Trackers: nothing in; out where they log in. Pure.
"""

from typing import Any

from rljob_api import cluster
from rljob_api.spec import TRACKERS_WITH_KEYS, Tracker
from rljob_operator.build.parts import (
    CONTROL_PART,
    COORDINATOR_PART,
    STORAGE_PART,
    Manifest,
    Part,
    Site,
    manifest,
    selector,
    tracker_part,
    trackers,
)
from rljob_operator.options import ANY_NAMESPACE, CoordinatorAccess, Isolation

_WORKERS = Part(cluster.COMPONENT_WORKER, "")


_NAMESPACE = "kubernetes.io/metadata.name"
"""Kubernetes puts it on every namespace."""


_DNS_PORT = 53


def network_policies(site: Site) -> list[Manifest]:
    """A policy for each kind of pods; none where the operator's options want no isolation."""
    if site.workloads.isolation is Isolation.NONE:
        return []
    return [
        _policy(
            site, COORDINATOR_PART, cluster.coordinator_name(site.name), _coordinator_in(site), _coordinator_out(site)
        ),
        _policy(site, CONTROL_PART, cluster.control_name(site.name), [_from_job(site)], []),
        _policy(site, STORAGE_PART, cluster.storage_name(site.name), [_from_job(site)], []),
        _policy(site, _WORKERS, f"{site.name}-workers", [_from_job(site), *_from_scraper(site)], [{}]),
        *(_of_tracker(site, tracker) for tracker in trackers(site.job)),
    ]


def _of_tracker(site: Site, tracker: Tracker) -> Manifest:
    """Nothing in, and nothing out of one that only writes files."""
    out: list[Any] = [{}] if tracker in TRACKERS_WITH_KEYS else []
    return _policy(site, tracker_part(tracker), cluster.tracker_name(site.name, tracker.value), [], out)


def _policy(site: Site, part: Part, name: str, ingress: list[Any], egress: list[Any]) -> Manifest:
    spec = {
        "podSelector": {"matchLabels": selector(site, part)},
        "policyTypes": ["Ingress", "Egress"],
        # No rule at all: the field is left out. The API server drops an empty list, and would see a change each time.
        **({"ingress": ingress} if ingress else {}),
        **({"egress": egress} if egress else {}),
    }
    return manifest(site, ("networking.k8s.io/v1", "NetworkPolicy"), name, {"spec": spec}, part)


def _coordinator_in(site: Site) -> list[dict[str, Any]]:
    return [_from_job(site), _from_operator(site), *_from_scraper(site)]


def _coordinator_out(site: Site) -> list[dict[str, Any]]:
    # DNS may be a pod, or an address of the node that no selector names: the port identifies it.
    dns = {"ports": [{"protocol": protocol, "port": _DNS_PORT} for protocol in ("UDP", "TCP")]}
    return [{"to": [_pods_of_job(site)]}, dns]


def _from_job(site: Site) -> dict[str, Any]:
    return {"from": [_pods_of_job(site)]}


def _pods_of_job(site: Site) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": {cluster.LABEL_JOB: site.name}}}


def _from_operator(site: Site) -> dict[str, Any]:
    allowed = {"ports": [{"port": cluster.COORDINATOR_PORT}]}
    if site.options.coordinator_access is CoordinatorAccess.PROXY:
        return allowed  # from the API server, which no selector names; the coordinator wants its token all the same
    peers = site.workloads.operator_labels
    return {
        **allowed,
        "from": [{**_namespace(site.workloads.operator_namespace), "podSelector": {"matchLabels": peers}}],
    }


def _from_scraper(site: Site) -> list[dict[str, Any]]:
    """No rule where nothing scrapes."""
    namespace = site.workloads.scraper_namespace
    if namespace is None:
        return []
    peer = _namespace(None if namespace == ANY_NAMESPACE else namespace)
    return [{"ports": [{"port": cluster.METRICS_PORT}], "from": [peer]}]


def _namespace(name: str | None) -> dict[str, Any]:
    return {"namespaceSelector": {} if name is None else {"matchLabels": {_NAMESPACE: name}}}


_POD_NAME = "statefulset.kubernetes.io/pod-name"
"""Kubernetes puts it on the pods of a StatefulSet."""


_HTTP = {"name": "http", "port": cluster.COORDINATOR_PORT, "targetPort": "http"}


_REDIS = {"name": "redis", "port": cluster.REDIS_PORT, "targetPort": "redis"}


def services(site: Site) -> list[Manifest]:
    """All of them."""
    return [
        _service(site, COORDINATOR_PART, cluster.coordinator_name(site.name), _HTTP),
        _service(site, CONTROL_PART, cluster.control_name(site.name), _REDIS),
        _service(site, STORAGE_PART, cluster.storage_name(site.name), _REDIS, clusterIP="None"),
        *(_unit(site, unit) for unit in range(site.job.spec.transfer_queue.storage_units)),
    ]


def _unit(site: Site, unit: int) -> Manifest:
    name = cluster.storage_unit_name(site.name, unit)
    return _service(site, STORAGE_PART, name, _REDIS, selector={**selector(site, STORAGE_PART), _POD_NAME: name})


def _service(site: Site, part: Part, name: str, port: dict[str, Any], **fields: Any) -> Manifest:  # noqa: ANN401 - JSON
    spec = {"selector": selector(site, part), "ports": [port], "publishNotReadyAddresses": True, **fields}
    return manifest(site, ("v1", "Service"), name, {"spec": spec}, part)
