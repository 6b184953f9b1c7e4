"""The kinds of objects that the operator reads and writes, and their paths on the API server. Pure."""

from dataclasses import dataclass

from rljob_api.cluster import API_GROUP, API_VERSION, RLJOB_KIND, RLJOB_PLURAL


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind as the API server serves it."""

    api_version: str
    kind: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection (namespace None: in all namespaces), an object, or its subresource."""
        root = "/api/" if "/" not in self.api_version else "/apis/"
        parts = [root + self.api_version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part is not None]
        return "/".join(parts)


RLJOBS = Resource(f"{API_GROUP}/{API_VERSION}", RLJOB_KIND, RLJOB_PLURAL)


PODS = Resource("v1", "Pod", "pods")


NODES = Resource("v1", "Node", "nodes")


SECRETS = Resource("v1", "Secret", "secrets")


SERVICES = Resource("v1", "Service", "services")


CONFIG_MAPS = Resource("v1", "ConfigMap", "configmaps")


CLAIMS = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims")


DEPLOYMENTS = Resource("apps/v1", "Deployment", "deployments")


STATEFUL_SETS = Resource("apps/v1", "StatefulSet", "statefulsets")


REPLICA_SETS = Resource("apps/v1", "ReplicaSet", "replicasets")


DISRUPTION_BUDGETS = Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")


NETWORK_POLICIES = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")


POD_MONITORS = Resource("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")


POD_GROUPS = Resource("scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups")


CLAIM_TEMPLATES = Resource("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates")


WORKLOADS = Resource("kueue.x-k8s.io/v1beta2", "Workload", "workloads")


RESOURCE_FLAVORS = Resource("kueue.x-k8s.io/v1beta2", "ResourceFlavor", "resourceflavors")


WORKLOAD_PRIORITY_CLASSES = Resource("kueue.x-k8s.io/v1beta2", "WorkloadPriorityClass", "workloadpriorityclasses")


PRIORITY_CLASSES = Resource("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses")


EVENTS = Resource("v1", "Event", "events")


LEASES = Resource("coordination.k8s.io/v1", "Lease", "leases")


OWNED = (
    SECRETS,
    SERVICES,
    CONFIG_MAPS,
    CLAIMS,
    DEPLOYMENTS,
    STATEFUL_SETS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    POD_MONITORS,
    POD_GROUPS,
    CLAIM_TEMPLATES,
    WORKLOADS,
)
"""What a job may be made of; objects that are no longer wanted are searched among these."""


WITH_PODS = frozenset({DEPLOYMENTS.kind, STATEFUL_SETS.kind})


_BY_KIND = {resource.kind: resource for resource in OWNED}


def resource_of(kind: str) -> Resource:
    """The resource of a manifest's kind."""
    return _BY_KIND[kind]
