"""Fields of the spec that mean something on a cluster only.

Pure. Read by `rljob run`, which says what it does not look at, and where a changed field does no harm.
"""

from rljob_api.names import Role
from rljob_api.revision import given
from rljob_api.role_traits import field_name
from rljob_api.spec import RLJobSpec

CLUSTER_ONLY: tuple[str, ...] = (
    *(f"roles.{field_name(role)}.{field}" for role in Role for field in ("gpuResource", "resources", "template")),
    "transferQueue.redis",
    "checkpoint.volume",
    "scheduling",
    "infrastructure",
    "image",
    "suspend",
    "restartRequest",
    "managedBy",
    "activeDeadlineSeconds",
    "ttlSecondsAfterFinished",
    "cleanPodPolicy",
)
"""Paths below `spec`. A field that is an object stands for everything in it."""


def is_cluster_only(field: str) -> bool:
    """Whether the field is one of them or lies in one."""
    return any(field == known or field.startswith(f"{known}.") for known in CLUSTER_ONLY)


def given_cluster_fields(spec: RLJobSpec) -> list[str]:
    """Those that were set to something else than their default, in the order above."""
    found = [field for field, _ in given(spec)]
    return [known for known in CLUSTER_ONLY if any(field == known or field.startswith(f"{known}.") for field in found)]
