"""How many pods a part has: what the status says, and none once the job is suspended or over."""

from rljob_api.gang import required_replicas
from rljob_api.names import Role
from rljob_api.spec import CleanPodPolicy, RLJobSpec
from rljob_api.status import ConditionType, RLJobStatus
from rljob_operator.build.parts import Site

_ENDED = (ConditionType.SUCCEEDED, ConditionType.FAILED)


def role_replicas(site: Site, status: RLJobStatus, role: Role) -> int:
    """Pods of a role: as many as the status has, draining ones among them; those it begins with before it has any."""
    if _workers_gone(site.job.spec, status) or status.restart.releasing:
        return 0
    known = next((found for found in status.roles if found.name == role), None)
    if known is not None:
        return len(known.pods)
    return 0 if site.job.spec.suspend else required_replicas(site.job.spec)[role]


def infrastructure_replicas(site: Site, status: RLJobStatus, replicas: int) -> int:
    """Pods of the coordinator or of Redis, `replicas` while the job needs them."""
    spec = site.job.spec
    if _is(status, ConditionType.SUSPENDED) or (spec.suspend and not status.roles):
        return 0
    return 0 if _ended(status) and spec.clean_pod_policy is CleanPodPolicy.ALL else replicas


def _workers_gone(spec: RLJobSpec, status: RLJobStatus) -> bool:
    return _is(status, ConditionType.SUSPENDED) or (_ended(status) and spec.clean_pod_policy is not CleanPodPolicy.NONE)


def _ended(status: RLJobStatus) -> bool:
    return any(_is(status, condition) for condition in _ENDED)


def _is(status: RLJobStatus, condition: ConditionType) -> bool:
    return any(found.type is condition and found.status == "True" for found in status.conditions)
