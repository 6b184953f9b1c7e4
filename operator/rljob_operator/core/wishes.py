"""Wishes: restarts that the user asks for, by a request or by another spec. They never count.

Pure. Called by `decide`. A local run has none.
"""

from rljob_api.role_traits import TRAITS
from rljob_api.spec import RestartRequestSpec
from rljob_api.status import RLJobStatus
from rljob_operator.core.observed import Observed
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import staying
from rljob_operator.core.verdicts import Cause, RestartGlobal, RestartInPlace


def spec_change(observed: Observed, status: RLJobStatus) -> RestartGlobal | None:
    """A new epoch from the checkpoint where what the epoch runs with is not what the spec says now."""
    revision = observed.wishes.revision
    if not revision or revision == status.restart.revision:
        return None
    message = f"the spec was changed (generation {observed.wishes.generation})"
    return RestartGlobal(Reason.SPEC_CHANGED, message, ids=(f"spec/{revision}",), counts=False, wished=True)


def requested(
    observed: Observed, status: RLJobStatus, beside: RestartInPlace | None
) -> RestartGlobal | RestartInPlace | None:
    """What spec.restartRequest asks for, once for every id, together with what restarts in place anyway; else None."""
    request = observed.wishes.request
    if request is None or request.id == status.restart.handled_request:
        return None
    if request.role is None or TRAITS[request.role].fixed_because:
        message, id_ = _sentence(request), f"request/{request.id}"
        return RestartGlobal(
            Reason.RESTART_REQUESTED, message, role=request.role, ids=(id_,), counts=False, wished=True
        )
    failed = beside.causes if beside is not None else ()
    there = {cause.pod for cause in failed}
    asked = tuple(
        Cause(f"request/{request.id}/{key}", Reason.RESTART_REQUESTED, key, _sentence(request), counts=False)
        for key, _ in staying(status)
        if key.role is request.role and key not in there
    )
    return RestartInPlace((*failed, *asked), request.id)


def _sentence(request: RestartRequestSpec) -> str:
    return f"a restart was requested ({request.id})" + (f": {request.reason}" if request.reason else "")
