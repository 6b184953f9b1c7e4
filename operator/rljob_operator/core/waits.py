"""Waits: what a job that is not Ready waits for, in one word and one sentence.

Pure. Called by `readiness` and by whoever ends a job that waits for too long. Whatever keeps a job says so here: a wait
that is not found here is a silent one.
"""

from collections.abc import Iterator
from itertools import groupby

from rljob_api.status import RLJobStatus
from rljob_api.wire.identity import PodKey
from rljob_api.wire.observation import ServerState
from rljob_operator.core.infrastructure import down
from rljob_operator.core.observed import Observed, Obstacle, PodState
from rljob_operator.core.opening import held
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import staying
from rljob_operator.core.wording import last_line

_BESIDE_ANOTHER = "didn't match pod affinity rules"
_SHORTAGE = "Insufficient "
"""In the words of Kubernetes' scheduler."""


def waited_for(observed: Observed, status: RLJobStatus, now: float) -> Obstacle:
    """The first word that anybody has for it ("": only time is waited for), and all that is waited for."""
    if status.restart.opened < status.restart.epoch:
        why = _why_not_open(observed, status, now)
        sentence = "the epoch is not open yet" + (f": {why.sentence}" if why else "")
        named = _causes_first([*_down(observed), *_named(observed, status, only_told=True)])
        sentence += f"; waiting for {', '.join(named)}" if named else ""
    else:
        why = None
        sentence = "waiting for " + ", ".join(_causes_first([*_down(observed), *_named(observed, status)]))
    found = sorted(_obstacles(observed, status), key=lambda each: _follows(each.sentence))
    said = [*observed.obstacles, *found, *([why] if why else [])]
    sentence = "; ".join([sentence, *(each.sentence for each in observed.obstacles)])
    return Obstacle(next((each.reason for each in said if each.reason), ""), sentence)


def _causes_first(named: list[str]) -> list[str]:
    return sorted(named, key=_follows)


def _follows(sentence: str) -> bool:
    """Whether a pod waits only until another has a node: what keeps the other one is the cause of both."""
    return _BESIDE_ANOTHER in sentence and _SHORTAGE not in sentence


def _down(observed: Observed) -> list[str]:
    """Infrastructure that does not run. There may be no pod of the coordinator that could say so of itself."""
    found, silence = down(observed.infrastructure), observed.silence
    is_nobody_there = silence is not None and silence.reason is Reason.INFRASTRUCTURE_DOWN
    return [silence.message] if silence is not None and is_nobody_there and not found else found


def _why_not_open(observed: Observed, status: RLJobStatus, now: float) -> Obstacle | None:
    if not observed.on_cluster:
        return None
    why = held(observed, status, now)
    coordinator = observed.coordinator
    if why is None and coordinator is not None and coordinator.server is ServerState.OPENING:
        return Obstacle(Reason.CONTROL_STATE_OPENING.value, "the coordinator reads the control state")
    return why


def _obstacles(observed: Observed, status: RLJobStatus) -> Iterator[Obstacle]:
    """Of infrastructure and pods, in this order: nothing of a pod can be told without the infrastructure."""
    for process in observed.infrastructure:
        yield Obstacle(process.reason, process.waits_for)
    for key, pod in staying(status):
        if not pod.ready and (why := _why(observed, key)) is not None:
            yield why


def _why(observed: Observed, key: PodKey) -> Obstacle | None:
    """What a pod's platform says of why it does not run, or is not there."""
    fact = observed.fact(key)
    if fact is None:
        return observed.unmade.get(key.role)
    return Obstacle(fact.reason, last_line(fact.last_words)) if fact.state is PodState.PENDING else None


def _named(observed: Observed, status: RLJobStatus, *, only_told: bool = False) -> Iterator[str]:
    """Pods that are not ready, each with its sentence; neighbours of whom the same is said have it once."""
    waiting = [key for key, pod in staying(status) if not pod.ready]
    for sentence, keys in groupby(waiting, lambda key: why.sentence if (why := _why(observed, key)) else ""):
        if sentence:
            yield f"{' and '.join(map(str, keys))} ({sentence})"
        elif not only_told:
            yield from map(str, keys)
