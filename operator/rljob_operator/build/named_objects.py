"""Every place by which a job can name an object of the cluster, and who may name what there: one table.

`foreign_objects` refuses a job by it, and the chart's admission policy is written from it (`helm.policy_table`). Tests
walk the API's models and Kubernetes' own pod template over it: a field that names an object and is not here fails
them. Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rljob_api import cluster
from rljob_operator.build.template_patch import DIRECTIVE, MERGE_KEYS

EACH = "[]"
"""In a path: every entry of a list, or of a map of roles."""

Path = tuple[str, ...]


class Kind(StrEnum):
    """Kinds of objects, as sentences call them."""

    SECRET = "Secret"  # noqa: S105 - a kind
    CONFIG_MAP = "ConfigMap"
    CLAIM = "PersistentVolumeClaim"
    VOLUME = "PersistentVolume"
    SERVICE_ACCOUNT = "ServiceAccount"
    RESOURCE_CLAIM = "ResourceClaim"
    RESOURCE_CLAIM_TEMPLATE = "ResourceClaimTemplate"
    PRIORITY_CLASS = "PriorityClass"
    RUNTIME_CLASS = "RuntimeClass"
    STORAGE_CLASS = "StorageClass"
    ATTRIBUTES_CLASS = "VolumeAttributesClass"
    CSI_DRIVER = "CSIDriver"
    TRUST_BUNDLE = "ClusterTrustBundle"
    SIGNER = "signer"
    ACCOUNT_OF_WINDOWS = "GMSACredentialSpec"
    NODE = "Node"
    ENDPOINTS = "Endpoints"
    WORKLOAD = "Workload"
    POD_GROUP = "PodGroup"
    SERVICE = "Service"
    SCHEDULER = "scheduler"
    EXTENDED_RESOURCE = "extended resource"
    DEVICE_CLASS = "DeviceClass"
    LOCAL_QUEUE = "LocalQueue"
    CONTROLLER = "controller"


class Access(StrEnum):
    """Who may name what at a place."""

    OPEN = "Open"
    """A job names any object but the administrator's: what it names its pods read, write or are."""
    PULLED = "Pulled"
    """As OPEN; the Secrets that all pods pull images with anyway may be named, too, since no container sees them."""
    LISTED = "Listed"
    """A job names what `admissionPolicy` lists, where that is in force, and nowhere what is reserved."""
    CLUSTER = "Cluster"
    """A job names any: they belong to all, and hold nothing of any tenant's."""
    REFUSED = "Refused"
    """No job names any where `admissionPolicy` is in force."""
    BY_KEY = "ByKey"
    """A key of metadata: `workloads.reach` says which are refused (`build.reach`)."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place, below the spec of a job or below a pod template."""

    path: Path
    kind: Kind
    access: Access = Access.OPEN


def _place(path: str, kind: Kind, access: Access = Access.OPEN) -> Place:
    return Place(tuple(path.replace(EACH, f".{EACH}").split(".")), kind, access)


CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")

_WITH_SECRET_REF = ("cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos")
"""Kinds of volumes of Kubernetes' own that log in by a Secret."""

_NEVER = Access.REFUSED

_TEMPLATE_OF_CLAIM = "spec.volumes[].ephemeral.volumeClaimTemplate"
_CLAIM_OF_POD = f"{_TEMPLATE_OF_CLAIM}.spec"

SPEC_PLACES = (
    _place("telemetry.keysFrom.secretName", Kind.SECRET),
    _place("checkpoint.volume.claimName", Kind.CLAIM),
    _place("scheduling.priorityClassName", Kind.PRIORITY_CLASS, Access.LISTED),
    _place("scheduling.schedulerName", Kind.SCHEDULER, Access.CLUSTER),
    _place("checkpoint.volume.storageClassName", Kind.STORAGE_CLASS, Access.CLUSTER),
    _place("transferQueue.redis.persistence.storageClassName", Kind.STORAGE_CLASS, Access.CLUSTER),
    _place("roles[].gpuResource", Kind.EXTENDED_RESOURCE, Access.CLUSTER),
    _place("scheduling.queueName", Kind.LOCAL_QUEUE, Access.CLUSTER),
    _place("roles[].deviceClass", Kind.DEVICE_CLASS, Access.CLUSTER),
    _place("managedBy", Kind.CONTROLLER, Access.CLUSTER),
)
"""Fields of a job's spec outside of its templates."""

POD_PLACES = (
    _place("spec.volumes[].secret.secretName", Kind.SECRET),
    _place("spec.volumes[].projected.sources[].secret.name", Kind.SECRET),
    _place("spec.volumes[].csi.nodePublishSecretRef.name", Kind.SECRET),
    _place("spec.volumes[].azureFile.secretName", Kind.SECRET),
    *(_place(f"spec.volumes[].{volume}.secretRef.name", Kind.SECRET) for volume in _WITH_SECRET_REF),
    *(_place(f"spec.{each}[].env[].valueFrom.secretKeyRef.name", Kind.SECRET) for each in CONTAINER_LISTS),
    *(_place(f"spec.{each}[].envFrom[].secretRef.name", Kind.SECRET) for each in CONTAINER_LISTS),
    _place("spec.imagePullSecrets[].name", Kind.SECRET, Access.PULLED),
    _place("spec.volumes[].configMap.name", Kind.CONFIG_MAP),
    _place("spec.volumes[].projected.sources[].configMap.name", Kind.CONFIG_MAP),
    *(_place(f"spec.{each}[].env[].valueFrom.configMapKeyRef.name", Kind.CONFIG_MAP) for each in CONTAINER_LISTS),
    *(_place(f"spec.{each}[].envFrom[].configMapRef.name", Kind.CONFIG_MAP) for each in CONTAINER_LISTS),
    _place("spec.volumes[].persistentVolumeClaim.claimName", Kind.CLAIM),
    # A claim that begins as a copy of another one, or of a snapshot of that name.
    _place(f"{_CLAIM_OF_POD}.dataSource.name", Kind.CLAIM),
    _place(f"{_CLAIM_OF_POD}.dataSourceRef.name", Kind.CLAIM),
    _place(f"{_CLAIM_OF_POD}.volumeName", Kind.VOLUME, _NEVER),
    _place(f"{_CLAIM_OF_POD}.selector", Kind.VOLUME, _NEVER),
    # Provisioners read there which claim to copy (CDI), or which folder of a share to give (NFS).
    _place(f"{_TEMPLATE_OF_CLAIM}.metadata.annotations", Kind.CLAIM, _NEVER),
    _place(f"{_CLAIM_OF_POD}.storageClassName", Kind.STORAGE_CLASS, Access.CLUSTER),
    _place(f"{_CLAIM_OF_POD}.volumeAttributesClassName", Kind.ATTRIBUTES_CLASS, Access.CLUSTER),
    _place("spec.resourceClaims[].resourceClaimName", Kind.RESOURCE_CLAIM),
    _place("spec.resourceClaims[].resourceClaimTemplateName", Kind.RESOURCE_CLAIM_TEMPLATE),
    _place("spec.serviceAccountName", Kind.SERVICE_ACCOUNT, Access.LISTED),
    _place("spec.serviceAccount", Kind.SERVICE_ACCOUNT, Access.LISTED),
    _place("spec.priorityClassName", Kind.PRIORITY_CLASS, Access.LISTED),
    _place("spec.volumes[].csi.driver", Kind.CSI_DRIVER, Access.LISTED),
    _place("spec.volumes[].flexVolume.driver", Kind.CSI_DRIVER, _NEVER),
    _place("spec.volumes[].glusterfs.endpoints", Kind.ENDPOINTS, _NEVER),
    _place("spec.securityContext.windowsOptions.gmsaCredentialSpecName", Kind.ACCOUNT_OF_WINDOWS, _NEVER),
    *(
        _place(f"spec.{each}[].securityContext.windowsOptions.gmsaCredentialSpecName", Kind.ACCOUNT_OF_WINDOWS, _NEVER)
        for each in CONTAINER_LISTS
    ),
    _place("spec.nodeName", Kind.NODE, _NEVER),
    _place("spec.workloadRef", Kind.WORKLOAD, _NEVER),
    _place("spec.schedulingGroup", Kind.POD_GROUP, _NEVER),
    Place(("metadata", "labels", cluster.LABEL_POD_GROUP), Kind.POD_GROUP, Access.BY_KEY),
    Place(("metadata", "annotations", "scheduling.k8s.io/group-name"), Kind.POD_GROUP, Access.BY_KEY),
    _place("spec.runtimeClassName", Kind.RUNTIME_CLASS, Access.CLUSTER),
    _place("spec.schedulerName", Kind.SCHEDULER, Access.CLUSTER),
    _place("spec.subdomain", Kind.SERVICE, Access.CLUSTER),
    _place("spec.volumes[].projected.sources[].clusterTrustBundle.name", Kind.TRUST_BUNDLE, Access.CLUSTER),
    _place("spec.volumes[].projected.sources[].clusterTrustBundle.signerName", Kind.TRUST_BUNDLE, Access.CLUSTER),
    _place("spec.volumes[].projected.sources[].podCertificate.signerName", Kind.SIGNER, _NEVER),
)
"""Fields of a pod template."""

_BEFORE, _AFTER = cluster.control_claim_name(" ").split(" ")

OWN_NAMES = (
    (Kind.SECRET, "", cluster.secret_name("")),
    (Kind.SECRET, "", cluster.secret_copy_name("")),
    (Kind.CONFIG_MAP, "", cluster.config_name("")),
    (Kind.CLAIM, "", cluster.checkpoint_claim_name("")),
    (Kind.CLAIM, _BEFORE, _AFTER),
)
"""Kind, and what stands before and after the job's name, of the objects that a job makes."""


def names_at(value: object, path: Path, where: str, key: str = "") -> Iterator[tuple[str, str]]:
    """Each name at `path` below `value`, the value of `key`, and where it stands.

    What is no name there is the API server's to judge.
    """
    if not path:
        if isinstance(value, str):
            yield where, value
        return
    head, rest = path[0], path[1:]
    if head != EACH:
        if isinstance(value, dict) and head in value:
            yield from names_at(value[head], rest, f"{where}.{head}" if where else head, head)
        return
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from names_at(entry, rest, f"{where}.{name}")
    for index, entry in enumerate(value if isinstance(value, list) else ()):
        if isinstance(entry, dict) and not _deletes(entry, key):
            yield from names_at(entry, rest, f"{where}[{entry.get('name', index)}]")


def _deletes(entry: dict[str, Any], key: str) -> bool:
    """An entry that deletes another names nothing. In a list that is not merged a directive does nothing."""
    return key in MERGE_KEYS and entry.get(DIRECTIVE) == "delete"
