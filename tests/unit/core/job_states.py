"""Jobs of a cluster in each state that a user meets, and how tools that know no RLJob are to read them.

Judged by the rules as `test_tool_conditions` has them, and by the tools' own programs in tests/cluster/test_gitops.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rljob_api.names import Role
from rljob_api.status import AcceptedStatus, ConditionType, RLJobStatus
from rljob_operator.core import PodState, Reason, RefusedSpec, UserRequest
from rljob_operator.core.conditions import with_condition
from rljob_operator.core.derived_status import with_tool_conditions
from tests.unit.core.cluster import Cluster, make_cluster
from tests.unit.core.worlds import make_policy


@dataclass(frozen=True)
class State:
    """One state. `make` gives the status, or None where the operator has not written any."""

    make: Callable[[], RLJobStatus | None]
    kstatus: str
    """By kstatus: InProgress, Current or Failed."""
    argo: str
    """By the health script: Progressing, Healthy, Degraded or Suspended."""
    generation: int = 1

    def job(self) -> dict[str, Any]:
        """The job as the API server has it, which gives a new one the default of its status."""
        status = self.make()
        written = {"observedGeneration": 0} if status is None else status.model_dump(mode="json", by_alias=True)
        metadata = {"name": "demo", "namespace": "team", "generation": self.generation}
        job = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": {}}
        return job | {"status": written}


def _starting() -> RLJobStatus:
    world = Cluster()
    world.turn()
    return world.status


def _succeeded() -> RLJobStatus:
    world = make_cluster()
    world.step, world.recorded = 99, 100
    return world.settle(12).status


def _failed() -> RLJobStatus:
    world = make_cluster(policy=make_policy(failureRules=[{"name": "mine", "exitCodes": [3], "action": "FailJob"}]))
    world.pod(Role.ACTOR).state, world.pod(Role.ACTOR).exit_code = PodState.EXITED, 3
    return world.settle(12).status


def _suspended() -> RLJobStatus:
    world = make_cluster()
    world.ask(suspend=True)
    return world.settle(12).status


def _resumed() -> RLJobStatus:
    world = make_cluster()
    world.ask(suspend=True)
    world.settle(12)
    world.ask(suspend=False)
    return world.settle(12).status


def _created_suspended() -> RLJobStatus:
    world = Cluster(request=UserRequest(revision="r1", generation=1, suspend=True))
    return world.settle().status


def _refused_at_first() -> RLJobStatus:
    status = RLJobStatus(observed_generation=1)
    reason, message = Reason.NAME_TAKEN.value, "the Service demo-actor is not the job's"
    status = with_condition(status, ConditionType.ACCEPTED, 1.0, true=False, reason=reason, message=message)
    return with_tool_conditions(status, 1.0)


def _refused_edit() -> RLJobStatus:
    world = make_cluster()
    good = AcceptedStatus(generation=1, digest="d1")
    world.request = replace(world.request, accepted=good, refusal=RefusedSpec(2, "spec.x: is wrong. Mend it."))
    return world.settle().status


def _mended_edit() -> RLJobStatus:
    world = make_cluster()
    good = AcceptedStatus(generation=1, digest="d1")
    world.request = replace(world.request, accepted=good, refusal=RefusedSpec(2, "spec.x: is wrong. Mend it."))
    world.settle()
    world.request = replace(world.request, generation=3, refusal=None)
    return world.settle().status


STATES = {
    "a job that the operator has not seen": State(lambda: None, "InProgress", "Progressing"),
    "a job that starts": State(_starting, "InProgress", "Progressing"),
    "a job that trains": State(lambda: make_cluster().status, "Current", "Healthy"),
    "an edit that the operator has not seen": State(lambda: make_cluster().status, "InProgress", "Progressing", 2),
    "a refused job": State(_refused_at_first, "InProgress", "Degraded"),
    "a refused edit of a job that trains": State(_refused_edit, "InProgress", "Degraded", 2),
    "an edit that mends a refused one": State(_mended_edit, "Current", "Healthy", 3),
    "a job that succeeded": State(_succeeded, "Current", "Healthy"),
    "a job that failed": State(_failed, "Failed", "Degraded"),
    "a suspended job": State(_suspended, "Current", "Suspended", 2),
    "a job that was resumed": State(_resumed, "Current", "Healthy", 3),
    "a job that was created suspended": State(_created_suspended, "Current", "Suspended"),
}
