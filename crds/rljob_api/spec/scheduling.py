"""How the pods of a job find their nodes (`spec.scheduling`): fields and rules. On a cluster only."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from rljob_api.base import ApiModel
from rljob_api.change import LIVE
from rljob_api.rule import Rule, RuledModel

DEFAULT_RELEASE_SECONDS = 60
"""Several rounds of a scheduler that backs off for ten seconds, and less than a user waits before asking why."""


ObjectName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=253),
]


LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        max_length=317,
    ),
]


class GangKind(StrEnum):
    """Schedulers that place pods together."""

    POD_GROUP = "PodGroup"


class TopologyRule(StrEnum):
    """How strictly pods stay together."""

    REQUIRED = "Required"
    PREFERRED = "Preferred"


class TopologySpec(ApiModel):
    """A domain of nodes, such as a rack or a zone, that all pods of roles are to share."""

    key: LabelKey
    """Label of nodes whose value is the domain, e.g. topology.kubernetes.io/zone."""
    rule: TopologyRule = TopologyRule.REQUIRED
    """Required: pods wait until the domain that the first of them chose has room. Preferred: others take them, too."""


class NodeRemoval(StrEnum):
    """Whether an autoscaler of nodes may take a node from under a job."""

    ALLOWED = "Allowed"
    REFUSED = "Refused"


def _needs_gang(field: str, name: str) -> Rule:
    return Rule(
        field=field,
        holds=lambda spec: getattr(spec, name) is None or spec.gang is not None,
        sentence=f"{{{field}}} is of a gang, and there is none. Give gang: PodGroup or remove it.",
        cel=f"!has(self.{field}) || has(self.gang)",
    )


class SchedulingSpec(RuledModel):
    """Who places the job's pods, and how. On a cluster only."""

    rules = (_needs_gang("minRollouts", "min_rollouts"), _needs_gang("releaseAfterSeconds", "release_after_seconds"))

    scheduler_name: ObjectName | None = None
    """Scheduler of all pods of the job; null means the cluster's default. A gang needs one with the plugin
    Coscheduling of scheduler-plugins."""
    queue_name: Annotated[ObjectName | None, LIVE] = None
    """LocalQueue of Kueue that admits the job, as the RLJob's label kueue.x-k8s.io/queue-name does: all of its pods
    wait for quota as a whole, and go, after a save, when Kueue takes it back. A job that runs and is given another
    queue is saved, suspended and admitted there. Null: no queue, or that of the label."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of all pods of the job; null means the cluster's default. A role's template may name another."""
    gang: GangKind | None = None
    """PodGroup: nothing of the job is placed before there is room for coordinator, Redis, every role and minRollouts
    rollouts. The cluster needs scheduler-plugins, else the job is not accepted. Null: pods are placed one by one, and
    two jobs on a full cluster may each hold what the other waits for."""
    min_rollouts: Annotated[int | None, LIVE] = Field(default=None, ge=1, le=1024)
    """Rollouts that a gang waits for; the others of roles.rollout.replicas join the running job where there is room for
    them. Null: all."""
    release_after_seconds: Annotated[int | None, LIVE] = Field(default=None, ge=1, le=604800)
    """A job that cannot train since the cluster has no room for a pod that it has lost keeps its others for this long.
    Then it gives them all back and waits as a whole. Null: 60."""
    topology: TopologySpec | None = None
    """Pods of all roles in one domain of nodes; coordinator and Redis may be elsewhere. Null: anywhere."""
    node_removal: NodeRemoval | None = None
    """Refused: cluster-autoscaler and Karpenter leave the nodes of the job's pods, though they would save one by moving
    the pods: that costs the job the steps since its last checkpoint. Null: Refused for a gang, which might not get its
    places again, else Allowed."""

    @property
    def patience_seconds(self) -> int | None:
        """How long a gang keeps its pods where there is no room for one that it needs; None without a gang."""
        if self.gang is None:
            return None
        return DEFAULT_RELEASE_SECONDS if self.release_after_seconds is None else self.release_after_seconds

    @property
    def refuses_node_removal(self) -> bool:
        """Whether the pods ask that their nodes be left."""
        if self.node_removal is None:
            return self.gang is not None
        return self.node_removal is NodeRemoval.REFUSED
