"""Success: every rollout is trained and the checkpoint after the last one is recorded."""

from rljob_operator.core.observed import Observed
from rljob_operator.core.verdicts import Succeed


def finished(observed: Observed) -> Succeed | None:
    """Version numRollouts is recorded, not only published: a success that a crash could take back is none."""
    coordinator = observed.coordinator
    if coordinator is None or coordinator.recorded is None or coordinator.recorded < observed.num_rollouts:
        return None
    return Succeed()
