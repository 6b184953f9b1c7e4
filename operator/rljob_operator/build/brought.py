"""What the operator's `workloads.podTemplate` brings to the pods of one part of a job. A value only.

No job changes it: `trespasses` judges that, and here is what there is to judge.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rljob_operator.build.template_patch import DIRECTIVE
from rljob_operator.build.volumes import MEMORY, TEMPORARY

Json = dict[str, Any]

WHOSE = "belongs to the administrator (the operator's workloads.podTemplate brings it), and no job changes it"
CONTAINER_LISTS = ("containers", "initContainers")
PLACES = (("volumeMounts", "mountPath"), ("volumeDevices", "devicePath"))
"""Lists of a container's, and the field of an entry that says where it lies."""
ACCOUNT = ("serviceAccountName", "serviceAccount")
"""Two names of one field: where the first is not given, the API server takes the second."""
_PODS_OWN = ("emptyDir", "configMap", "secret", "downwardAPI", "projected", "ephemeral")
"""Volumes that hold the same for every user. Of all others the user decides which files may be read."""
_SIZED = (TEMPORARY, MEMORY)


@dataclass(frozen=True, slots=True)
class Brought:
    """The administrator's patch as it concerns one part's pods."""

    patch: Json
    own: str
    """The container that the operator makes in these pods: a job's program runs in it."""
    pull_secrets: tuple[str, ...] = ()

    @property
    def spec(self) -> Json:
        """Of the patch."""
        found: Json = self.patch.get("spec", {})
        return found

    @property
    def volumes(self) -> list[str]:
        """Volumes. Of the operator's own it may say the size, and so may a job after it."""
        sized = [each["name"] for each in self.spec.get("volumes", []) if each["name"] in _SIZED and "emptyDir" in each]
        return [name for name in self.names("volumes") if name not in sized]

    @property
    def drivers(self) -> list[object]:
        """Of its volumes: a job that names one could have the same volume with other rights."""
        return [field_of(each.get("csi"), "driver") for each in self.spec.get("volumes", []) if "csi" in each]

    @property
    def has_account(self) -> bool:
        """Whether it gives the pods a service account."""
        return any(self.spec.get(key) is not None for key in ACCOUNT)

    def names(self, key: str) -> list[str]:
        """Of the entries of one of the pod's lists, without the operator's own container."""
        entries = [entry for entry in self.spec.get(key, []) if DIRECTIVE not in entry]
        return [entry["name"] for entry in entries if key != "containers" or entry["name"] != self.own]

    @property
    def containers(self) -> list[str]:
        """Containers that run beside the operator's."""
        return [*self.names("containers"), *self.names("initContainers")]

    @property
    def shared(self) -> list[str]:
        """The operator's volumes that one of these containers has, too: what is in them is given to it."""
        others = [each for key in CONTAINER_LISTS for each in self.spec.get(key, []) if each["name"] in self.names(key)]
        return [mount.get("name", "") for each in others for mount in each.get("volumeMounts", [])]

    @property
    def in_own(self) -> Json:
        """What it gives to the operator's container."""
        return named(self.spec.get("containers"), self.own)

    def mounts(self, key: str) -> list[Json]:
        """Mounts (or devices) in the operator's container."""
        return [mount for mount in self.in_own.get(key, []) if DIRECTIVE not in mount]

    @property
    def mounts_files_of_users(self) -> bool:
        """Whether that container sees files that are somebody's."""
        mounted = {mount.get("name") for mount in self.mounts("volumeMounts")}
        volumes = [volume for volume in self.spec.get("volumes", []) if volume["name"] in mounted]
        return any(key not in (*_PODS_OWN, "name") for volume in volumes for key in volume)


def jobs_containers(brought: Brought, before: Json, after: Json, path: str) -> Iterator[tuple[str, Json, Json]]:
    """Where, each container that is not the administrator's, and the same without the job's patch."""
    for key in CONTAINER_LISTS:
        for container in after["spec"].get(key, []):
            if container["name"] not in brought.names(key):
                where = f"{path}.spec.{key}[{container['name']}]"
                yield where, container, named(before["spec"].get(key), container["name"])


def field_of(value: object, key: str) -> object:
    """Of what may be no object: the API server has not judged it yet."""
    return value.get(key) if isinstance(value, dict) else None


def named(entries: list[Json] | None, name: str) -> Json:
    """The entry of that name; empty where there is none."""
    return next((entry for entry in entries or [] if entry["name"] == name), {})
