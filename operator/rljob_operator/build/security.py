"""What pods may do: the Pod Security Standard "restricted", and a root file system that nobody writes to."""

from typing import Any

USER = 10001
"""User and group of every process, whatever the image says; the group owns the volumes."""


def pod_security() -> dict[str, Any]:
    """Fields of a pod's spec."""
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            # A checkpoint volume is large: its files change hands once, not at every start of a pod.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def container_security() -> dict[str, Any]:
    """Fields of a container."""
    return {
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        },
    }
