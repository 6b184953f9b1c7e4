"""The environment of a job's container on a cluster: variables, secret files, the job's file.

Only the entry points `launcher.pod` and `dcs.coordinator.pod` read it; all other code gets `Endpoints` and the job.
Folders and names are `rljob_api.cluster`'s. Each error names what is missing and where it belongs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pydantic import ValidationError

from rljob_api import cluster
from rljob_api.manifest import absent_hub_names, resolve_hub_names
from rljob_api.names import Role
from rljob_api.roles import TRAITS
from rljob_api.spec import RLJob
from rljob_api.wire.identity import Endpoints, PodKey

_CURE = "Set it in the pod's template; the operator of this version does."


@dataclass(frozen=True, slots=True)
class PodEnvironment:
    """One pod's environment."""

    job_name: str
    namespace: str
    address: str
    """Of this pod, as other pods reach it."""
    root: Path
    """`/`; another folder stands in for it where many pods share one machine (RLJOB_ROOT)."""
    services: Path | None
    """A file of `Endpoints` instead of the cluster's names, where there is no cluster's DNS (RLJOB_ENDPOINTS)."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> PodEnvironment:
        """Raises ValueError for the first variable that is missing."""
        services = environ.get("RLJOB_ENDPOINTS")
        return cls(
            job_name=required(environ, "RLJOB_NAME"),
            namespace=required(environ, "RLJOB_NAMESPACE"),
            address=required(environ, "RLJOB_POD_IP"),
            root=Path(environ.get("RLJOB_ROOT") or "/"),
            services=Path(services) if services else None,
        )

    def folder(self, path: str) -> Path:
        """A path of `rljob_api.cluster` in this pod."""
        return self.root / path.lstrip("/")

    def job(self) -> RLJob:
        """The job as it was when the pod was made, with the names of the hub that its cache has as folders.

        Raises ValueError.
        """
        path = self.folder(cluster.JOB_FILE)
        try:
            return resolve_hub_names(RLJob.model_validate_json(_read(path, "the job")))
        except ValidationError as error:
            raise ValueError(
                f"{path} is not an RLJob that this version understands ({error.error_count()} problems, the first:"
                f" {error.errors()[0]['msg']}). Use an image of the operator's version."
            ) from error

    def job_of(self, role: Role) -> RLJob:
        """The job for a pod of this role. ValueError, too, where it reads what its cache lacks."""
        job = self.job()
        absent = next(absent_hub_names(job), None)
        if absent is not None and TRAITS[role].loads_model:
            raise ValueError(absent)
        return job

    def endpoints(self, job: RLJob) -> Endpoints:
        """Where the services of `job` are. Raises ValueError for a secret that is missing."""
        num_units = job.spec.transfer_queue.storage_units
        if self.services is not None:
            given = Endpoints.model_validate_json(_read(self.services, "the endpoints"))
            return given.model_copy(
                update={"address": self.address, "storage_units": given.storage_units[:num_units], **self._folders()}
            )
        units = [cluster.storage_unit_name(self.job_name, unit) for unit in range(num_units)]
        return Endpoints(
            job=self.job_name,
            coordinator=f"http://{self._host(cluster.coordinator_name(self.job_name))}:{cluster.COORDINATOR_PORT}",
            token=self._secret("token"),
            control_redis=self._redis(cluster.control_name(self.job_name)),
            storage_units=[self._redis(name) for name in units],
            address=self.address,
            **self._folders(),
        )

    def _folders(self) -> dict[str, str]:
        return {
            "run_dir": str(self.folder(cluster.RUN_DIR)),
            "weights_dir": str(self.folder(cluster.WEIGHTS_DIR)),
        }

    def _host(self, service: str) -> str:
        return cluster.service_host(service, self.namespace)

    def _redis(self, service: str) -> str:
        password = quote(self._secret("redis-password"), safe="")
        return f"redis://:{password}@{self._host(service)}:{cluster.REDIS_PORT}/0"

    def _secret(self, name: str) -> str:
        text = _read(self.folder(cluster.SECRET_DIR) / name, "a secret").decode().strip()
        if not text:
            raise ValueError(f"{self.folder(cluster.SECRET_DIR) / name} is empty. Put the job's secret there.")
        return text


def required(environ: Mapping[str, str], name: str) -> str:
    """A variable that must be set. Raises ValueError."""
    value = environ.get(name, "")
    if not value:
        raise ValueError(f"{name} is not set. {_CURE}")
    return value


def role_of(environ: Mapping[str, str]) -> Role:
    """The pod's role. Raises ValueError."""
    text = required(environ, "RLJOB_ROLE")
    try:
        return Role(text)
    except ValueError:
        known = ", ".join(role.value for role in Role)
        raise ValueError(f"RLJOB_ROLE: {text!r} is not a role. Use one of {known}.") from None


def of_role(pod: PodKey, role: Role, pod_uid: str) -> PodKey:
    """`pod`, which the pod with `pod_uid` is ordered to be. Raises ValueError where it was made for another role."""
    if pod.role is not role:
        raise ValueError(
            f"RLJOB_ROLE: pod {pod_uid} was made for role {role.value}, and it is ordered to be {pod}."
            " Give each pod's uid to a replica of its own role."
        )
    return pod


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {what} cannot be read ({error.strerror}). Mount it there.") from error
