"""What the spec's `scheduling` says in every pod of a job: its scheduler, its priority, its gang, its right to stay.

Nothing of it is in the pods of a job that says nothing of it. Called by `template` alone.
"""

from typing import Any

from rljob_api.cluster import LABEL_POD_GROUP
from rljob_operator.build.parts import Site

_STAY = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""How cluster-autoscaler and Karpenter are told to leave a pod's node. Both would evict the pod from a node that is
little used, as one is whose GPUs alone are: to them that costs nothing, since a Deployment makes another."""


def pod_labels(site: Site) -> dict[str, str]:
    """By the label the scheduler knows the pod's gang, which is named as the job is."""
    return {} if site.job.spec.scheduling.gang is None else {LABEL_POD_GROUP: site.name}


def pod_annotations(site: Site) -> dict[str, str]:
    """What asks autoscalers of nodes to leave the pod where it is."""
    return dict(_STAY) if site.job.spec.scheduling.refuses_node_removal else {}


def pod_scheduling(site: Site) -> dict[str, Any]:
    """Fields of a pod's spec."""
    given = site.job.spec.scheduling
    fields = {"schedulerName": given.scheduler_name, "priorityClassName": given.priority_class_name}
    return {name: value for name, value in fields.items() if value is not None}
