"""Spec changes: what an epoch runs with is another one now, so a new epoch begins from the checkpoint. Not counted."""

from rljob_api.status import RLJobStatus
from rljob_operator.core.observed import Observed
from rljob_operator.core.reasons import Reason
from rljob_operator.core.verdicts import RestartGlobal


def spec_change(observed: Observed, status: RLJobStatus) -> RestartGlobal | None:
    """A global restart where the spec's revision is not the one that the epoch runs with. A local run has none."""
    revision = observed.wishes.revision
    if not revision or revision == status.restart.revision:
        return None
    message = f"the spec was changed (generation {observed.wishes.generation})"
    return RestartGlobal(Reason.SPEC_CHANGED, message, ids=(f"spec/{revision}",), counts=False, wished=True)
