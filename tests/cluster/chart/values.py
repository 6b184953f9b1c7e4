"""Helm values for the cluster of this machine: operator and jobs run this checkout, so that no image has to be built.

`scripts/cluster-values` prints them; tests add their namespace.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.harness import hostpython
from tests.cluster.harness.machine import REPOSITORY, workload_options


def checkout_values() -> dict[str, Any]:
    """Values for an operator of all namespaces."""
    checkout = (REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))
    repository, _, tag = hostpython.IMAGE.partition(":")
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "python": sys.executable,
        "workloads": workload_options(),
        "volumes": hostpython.volumes(*checkout),
        "volumeMounts": hostpython.mounts(*checkout),
    }


if __name__ == "__main__":
    sys.stdout.write(yaml.safe_dump(checkout_values(), sort_keys=False))
