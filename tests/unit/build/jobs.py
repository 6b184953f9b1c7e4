"""Jobs to build from, and ways to find an object among manifests."""

from pathlib import Path
from typing import Any

from rljob_api.manifest import load_manifest
from rljob_api.names import Role
from rljob_api.spec import RLJob, RLJobSpec
from rljob_api.status import Condition, ConditionType, PodStatus, RLJobStatus, RoleStatus
from rljob_operator.build import Manifest, Owner, Platform, manifests, secret
from rljob_operator.options import OperatorOptions

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "examples"
OWNER = Owner(namespace="research", uid="0a1b2c3d-0000-4000-8000-000000000000")
RICH_OPTIONS = OperatorOptions.model_validate(
    {
        "workloads": {
            "pullSecrets": ["registry"],
            "operatorNamespace": "rljob-system",
            "scraperNamespace": "monitoring",
            "monitorLabels": {"release": "prometheus"},
            "podTemplate": {
                "metadata": {"annotations": {"example.org/mesh": "off"}},
                "spec": {
                    "runtimeClassName": "sandboxed",
                    "containers": [{"name": "coordinator", "env": [{"name": "LOG_LEVEL", "value": "debug"}]}],
                },
            },
        }
    }
)


def quickstart() -> RLJob:
    """The example that the documentation begins with."""
    return load_manifest(EXAMPLES / "quickstart.yaml")


def with_critic(**fields: Any) -> RLJob:
    """The same with a critic, of these fields."""
    return changed(quickstart(), algorithm={"advantage": "Gae"}, roles={"critic": fields})


def rich() -> RLJob:
    """A job that says something wherever manifests depend on it."""
    return load_manifest(HERE / "rich.yaml")


def changed(job: RLJob, **fields: Any) -> RLJob:
    """`job` with other fields of the spec, in the manifest's spelling; maps are merged into what is there."""
    spec = _merged(job.spec.model_dump(mode="json"), fields)
    return job.model_copy(update={"spec": RLJobSpec.model_validate(spec)})


def _merged(spec: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    return {
        **spec,
        **{
            key: _merged(spec[key], value) if isinstance(value, dict) and isinstance(spec.get(key), dict) else value
            for key, value in fields.items()
        },
    }


def build(
    job: RLJob,
    status: RLJobStatus | None = None,
    options: OperatorOptions | None = None,
    platform: Platform | None = None,
) -> dict[str, Manifest]:
    """The job's objects by `Kind/name`."""
    made = manifests(job, OWNER, status or RLJobStatus(), options or OperatorOptions(), platform or Platform())
    return {f"{found['kind']}/{found['metadata']['name']}": found for found in made}


def everything(job: RLJob, options: OperatorOptions, platform: Platform) -> list[Manifest]:
    """The job's objects, its Secret first."""
    drawn = secret(job, OWNER, token="token", password="password")
    return [drawn, *manifests(job, OWNER, RLJobStatus(), options, platform)]


def make_status(*conditions: ConditionType, **replicas: int) -> RLJobStatus:
    """A status with conditions that are true, and with so many pods in each role."""
    return RLJobStatus(
        conditions=[
            Condition(type=kind, status="True", reason="R", message="", last_transition_time="") for kind in conditions
        ],
        roles=[
            RoleStatus(
                name=Role(role),
                replicas=count,
                ready=0,
                failures=0,
                pods=[PodStatus(name=f"{role}-{n}", ready=False, generation=0) for n in range(count)],
            )
            for role, count in replicas.items()
        ],
    )


def pod_templates(objects: dict[str, Manifest]) -> dict[str, dict[str, Any]]:
    """The pod templates among the objects."""
    return {name: found["spec"]["template"] for name, found in objects.items() if "template" in found.get("spec", {})}


def container(manifest: Manifest, name: str) -> dict[str, Any]:
    """A container of a Deployment's or StatefulSet's pods."""
    found = manifest["spec"]["template"]["spec"]["containers"]
    return next(dict(one) for one in found if one["name"] == name)
