"""The control state: what if the coordinator's epoch is not the one that the status remembers?

Below it, but seen at it before, means that a tail was lost, as the coordinator's own `ControlStateLost` does: whatever
lived in that epoch cannot be told from what lives in it next, so that a new epoch is the only way. Above it, or equal
under another decision, means that the status was lost: the next free epoch is taken.
"""

from rljob_api.status import RLJobStatus
from rljob_api.wire.observation import ServerState
from rljob_operator.core.observed import Observed
from rljob_operator.core.reasons import Reason
from rljob_operator.core.verdicts import RestartGlobal


def control_state(observed: Observed, status: RLJobStatus) -> RestartGlobal | None:
    """A global restart where the coordinator's state and the status cannot be reconciled otherwise."""
    seen, restart = observed.coordinator, status.restart
    if seen is None or seen.server is ServerState.OPENING:
        return None
    if seen.epoch > restart.epoch or (seen.epoch == restart.epoch and seen.decision_id != restart.decision_id):
        message = f"the coordinator has epoch {seen.epoch}, which this job's status does not know"
        return RestartGlobal(Reason.EPOCH_TAKEN, message, ids=(f"taken/{seen.epoch}/{seen.decision_id}",), counts=False)
    if restart.opened < restart.epoch:
        return None
    if seen.server is not ServerState.LOST and seen.epoch == restart.epoch:
        return None
    message = "the control state came back without its tail: training goes on from the last recorded checkpoint"
    return RestartGlobal(Reason.CONTROL_STATE_LOST, message, ids=(f"lost/{restart.epoch}",))
