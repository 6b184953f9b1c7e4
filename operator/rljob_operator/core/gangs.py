"""Gangs: pods whose ranks take part in the same collectives begin together, in one generation.

Pure. The last step of `decide` that changes the status. A pod of a gang that begins anew (its life was lost, or it is a
new one) has another generation than its peers, and ranks of different generations never meet. So all of them get the
highest one: their ranks are forked anew, and wait for each other at the rendezvous.
"""

from rljob_api.names import Role
from rljob_api.role_traits import TRAITS, Grouping
from rljob_api.status import PodStatus, RLJobStatus
from rljob_api.wire.identity import PodKey
from rljob_operator.core.roster import staying, with_pods


def levelled(status: RLJobStatus, now: float) -> RLJobStatus:
    """`status` with every pod of a gang in the gang's highest generation."""
    highest: dict[Role, int] = {}
    for key, pod in staying(status):
        if TRAITS[key.role].grouping is Grouping.GANG:
            highest[key.role] = max(highest.get(key.role, 0), pod.generation)

    def level(key: PodKey, pod: PodStatus) -> PodStatus:
        generation = highest.get(key.role, 0)
        if pod.draining or pod.generation >= generation:
            return pod
        return pod.model_copy(update={"generation": generation, "ready": False, "ordered_at": now})

    return with_pods(status, level)
