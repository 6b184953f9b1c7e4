"""Volume: whether the claim that was made for a job has the size that its spec asks for, as a condition.

Pure. Called by `decide`. A refusal keeps nothing else from going on: the job has what it had.
"""

from rljob_api.status import ConditionType, RLJobStatus
from rljob_operator.core.conditions import find, with_condition
from rljob_operator.core.observed import Observed

EXPANDED, EXPANDING, REFUSED = "Expanded", "Expanding", "ExpansionRefused"
"""Reasons of the condition."""


def with_volume(observed: Observed, status: RLJobStatus, now: float) -> RLJobStatus:
    """`status` with what became of a larger `checkpoint.volume.size`; nothing is said where it never became larger."""
    fact, kind = observed.volume, ConditionType.VOLUME_EXPANDED
    if fact is None:
        return status
    if fact.refusal:
        message = (
            f"checkpoint.volume.size: the claim {fact.claim} stays at {fact.size}, since the API server refuses "
            f"{fact.wanted}: {fact.refusal}. It is asked for again every minute, and the job goes on; its storage "
            "class has to have allowVolumeExpansion"
        )
        return with_condition(status, kind, now, true=False, reason=REFUSED, message=message)
    if fact.capacity is not None and not fact.is_large_enough:
        said = f": {fact.said}" if fact.said else ""
        message = f"the volume of the claim {fact.claim} has {fact.capacity}, and is to have {fact.size}{said}"
        return with_condition(status, kind, now, true=False, reason=EXPANDING, message=message)
    if find(status, kind) is None:
        return status
    message = f"the volume of the claim {fact.claim} has {fact.capacity or fact.size}"
    return with_condition(status, kind, now, true=True, reason=EXPANDED, message=message)
