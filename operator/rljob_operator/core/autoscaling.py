"""Autoscaling: how many rollouts are wanted, by what the actor and the rollouts have waited for.

Pure. Called by `decide` before `scaling`, which brings the replicas about. Let n be the replicas, s the share of its
time that the actor was starved of rows, and h the share of the rollouts' capacity that was idle, tickets withheld:

    pressure p = s - h          of a pipeline in which only one side waits, s or -h
    more:  n / (1 - p)          p > 0: so much faster the actor would take rows
    fewer: n * (1 + p)          p < 0: so many would have been busy

Both are rounded up, so that fewer never starve the actor, and what is added for it is not taken away for being a little
more than enough. Where others hold the actor up (actor_fwd, say) rollouts are ahead and idle, and p stays about 0; a
strictly on-policy job, in which one side always waits, comes to where both wait for as long.

Shares are taken over whole steps, since within a step each side waits in its turn, and over as many as may be in work
at the same time. The state is in the status: an operator that starts again goes on where the last one was; when the
coordinator starts again, so do its counts, and what is judged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from rljob_api.names import Role
from rljob_api.roles import SCALED_ROLE
from rljob_api.status import ConditionType, DemandMark, RLJobStatus, RoleStatus, ScalingStatus
from rljob_api.wire.observation import DemandObservation
from rljob_operator.core.conditions import is_queue_draining, is_scaling, is_true
from rljob_operator.core.membership import scaled_role
from rljob_operator.core.observed import Autoscaling, Observed
from rljob_operator.core.reasons import Reason

MOST_GROWTH = 2
"""Times as many after one decision as before it, up or down: a share that is measured at a bottleneck means little
for a number far from it."""

_ROUNDING = 1e-9
_SAME_COUNT_SECONDS = 1e-3


@dataclass(frozen=True, slots=True)
class Shares:
    """What both sides waited for, over some steps."""

    starved: float
    """Of the actor's time."""
    idle: float
    """Of the rollouts' capacity."""
    seconds: float

    @property
    def pressure(self) -> float:
        """Above 0: more rollouts are wanted."""
        return self.starved - self.idle

    def sentence(self) -> str:
        """Both shares and over how long."""
        return (
            f"in the last {self.seconds:.0f} s the actor was starved of rows for {self.starved:.0%} of its time, and "
            f"rollouts stood idle, their tickets withheld, with {self.idle:.0%} of their capacity"
        )


def autoscaled(observed: Observed, status: RLJobStatus, now: float) -> RLJobStatus:
    """`status` with the number of rollouts that is wanted, and from where on the next decision is judged."""
    role = scaled_role(status)
    autoscaling, scaling = observed.autoscaling, status.scaling
    if autoscaling is None or role is None:
        return _with(status, _undecided(scaling))
    bounded = _bounded(autoscaling, scaling.desired)
    if scaling.desired not in (0, bounded):
        spec = autoscaling.spec
        message = f"autoscaling keeps from {spec.min_replicas} to {spec.max_replicas} replicas"
        return _with(status, _decided(scaling, bounded, Reason.BOUNDS_CHANGED, message, now))
    scaling = scaling.model_copy(update={"desired": bounded})
    if observed.coordinator is None or observed.coordinator.epoch < status.restart.epoch:
        return _with(status, scaling)
    demand = observed.coordinator.demand
    if demand is None or not _runs(status, role):
        return _with(status, _not_judged(scaling, None))
    if len(role.pods) != bounded or any(pod.draining for pod in role.pods):
        return _with(status, _not_judged(scaling, scaling.judged_replicas))  # it is being carried out
    return _with(status, _judged(autoscaling, scaling, role.ready, demand, now))


def with_wanted(observed: Observed, status: RLJobStatus) -> Observed:
    """`observed` with the number of rollouts that `status` wants."""
    if observed.autoscaling is None:
        return observed
    wanted = wanted_replicas(observed.replicas, observed.autoscaling, status)
    return observed if wanted == observed.replicas else replace(observed, replicas=wanted)


def wanted_replicas(
    replicas: Mapping[Role, int], autoscaling: Autoscaling | None, status: RLJobStatus
) -> Mapping[Role, int]:
    """`replicas` with what was decided last for the rollouts."""
    if autoscaling is None:
        return replicas
    return {**replicas, SCALED_ROLE: _bounded(autoscaling, status.scaling.desired)}


def more(replicas: int, pressure: float, tolerance: float) -> int:
    """How many the actor could do with; `replicas` where it can do with them."""
    if pressure <= tolerance:
        return replicas
    most = MOST_GROWTH * replicas
    return most if pressure >= 1 - 1 / MOST_GROWTH else min(_up(replicas / (1 - pressure)), most)


def fewer(replicas: int, pressure: float, tolerance: float) -> int:
    """How many would have been busy; `replicas` where all of them were."""
    if pressure >= -tolerance:
        return replicas
    return max(_up(replicas * (1 + pressure)), _up(replicas / MOST_GROWTH))


def shares(since: DemandMark, until: DemandObservation) -> Shares | None:
    """What was waited for in between; None where one of the two was not there."""
    actor, rollouts = until.actor_seconds - since.actor_seconds, until.rollout_seconds - since.rollout_seconds
    if actor <= 0 or rollouts <= 0:
        return None
    starved = (until.starved_seconds - since.starved_seconds) / actor
    idle = (until.withheld_seconds - since.withheld_seconds) / rollouts
    return Shares(min(starved, 1.0), min(idle, 1.0), until.at - since.at)


def _runs(status: RLJobStatus, role: RoleStatus) -> bool:
    """Whether nothing is restarted and tickets are given. Replicas that have not come up yet do not matter."""
    runs = is_true(status, ConditionType.READY) or is_scaling(status)
    return runs and role.ready > 0 and not is_queue_draining(status)


def _judged(
    autoscaling: Autoscaling, scaling: ScalingStatus, ready: int, demand: DemandObservation, now: float
) -> ScalingStatus:
    """No replica is added while a wanted one has no place, or does not come up: it would find none either."""
    up, down = scaling.up_since, scaling.down_since
    if scaling.judged_replicas != ready or scaling.judged_from_step is None:
        # What a change comes to is seen once all is trained that was begun before; after a restart it is one step.
        has_changed = scaling.judged_replicas not in (None, ready)
        first = demand.step + (autoscaling.max_staleness if has_changed else 0) + 1
        return _not_judged(scaling, ready).model_copy(update={"judged_from_step": first})
    if demand.step < scaling.judged_from_step:
        return scaling
    if up is None or down is None or not (_goes_on(up, demand) and _goes_on(down, demand)):
        return scaling.model_copy(update={"up_since": _mark(demand), "down_since": _mark(demand)})
    spec, desired, period = autoscaling.spec, scaling.desired, autoscaling.max_staleness + 1
    if demand.at - up.at >= spec.scale_up_after_seconds and demand.step - up.step >= period:
        seen = shares(up, demand)
        if seen is not None and ready >= desired:
            wanted = min(more(ready, seen.pressure, spec.tolerance), spec.max_replicas)
            if wanted > desired:
                return _decided(scaling, wanted, Reason.ACTOR_STARVED, seen.sentence(), now)
        scaling = scaling.model_copy(update={"up_since": _mark(demand)})
    if demand.at - down.at >= spec.scale_down_after_seconds and demand.step - down.step >= period:
        seen = shares(down, demand)
        if seen is not None and seen.pressure < -spec.tolerance:
            wanted = max(fewer(ready, seen.pressure, spec.tolerance), spec.min_replicas)
            if wanted < desired:
                return _decided(scaling, wanted, Reason.ROLLOUTS_IDLE, seen.sentence(), now)
        scaling = scaling.model_copy(update={"down_since": _mark(demand)})
    return scaling


def _goes_on(since: DemandMark, demand: DemandObservation) -> bool:
    """Whether both are of one count. The status has times to the microsecond."""
    return abs(since.since - demand.since) < _SAME_COUNT_SECONDS


def _decided(scaling: ScalingStatus, desired: int, reason: Reason, message: str, now: float) -> ScalingStatus:
    update = {"desired": desired, "reason": reason.value, "message": message, "last_decision": now}
    return _not_judged(scaling, scaling.judged_replicas).model_copy(update=update)


def _not_judged(scaling: ScalingStatus, judged_replicas: int | None) -> ScalingStatus:
    update = {"judged_replicas": judged_replicas, "judged_from_step": None, "up_since": None, "down_since": None}
    return scaling.model_copy(update=update)


def _undecided(scaling: ScalingStatus) -> ScalingStatus:
    """Without autoscaling."""
    return _not_judged(scaling, None).model_copy(update={"reason": "", "message": "", "last_decision": None})


def _with(status: RLJobStatus, scaling: ScalingStatus) -> RLJobStatus:
    return status if scaling == status.scaling else status.model_copy(update={"scaling": scaling})


def _bounded(autoscaling: Autoscaling, desired: int) -> int:
    """Of a job that begins, and has decided nothing, the fewest."""
    return min(max(desired, autoscaling.spec.min_replicas), autoscaling.spec.max_replicas)


def _mark(demand: DemandObservation) -> DemandMark:
    return DemandMark(**{name: getattr(demand, name) for name in DemandMark.model_fields})


def _up(count: float) -> int:
    return ceil(count - _ROUNDING)
