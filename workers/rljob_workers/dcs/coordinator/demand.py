"""Sums over the reports of all ranks: when the job last progressed, starved and idle seconds, skipped prompts.

`rank_incarnations` feeds it in the coordinator's thread; status and metrics show it. In memory only: a restarted
coordinator counts from zero and reports since when.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from rljob_api.names import Role
from rljob_api.roles import LEADING_ROLE, TICKET_ROLE
from rljob_api.wire.launchers import EngineProcess, EngineState
from rljob_api.wire.observation import DemandObservation
from rljob_api.wire.ranks import Beat
from rljob_workers.dcs.membership.counters import (
    EVALUATION_RETRIES,
    LOOP_SECONDS,
    PASSED_OVER,
    REWARD_RETRIES,
    STARVED_SECONDS,
    TRUNCATED,
    UNREAD,
    WITHHELD_SECONDS,
)
from rljob_workers.telemetry.exposition import Family, Sample


class Advance:
    """The newest growth of any rank's progress, or end of a part of a start.

    When a rank ends what it announced, or an engine is up, the job has all of its time for what comes next, such as the
    first weights of an engine that took long to start. Neither goes on for ever: ranks announce what belongs to their
    start, to a version or to a checkpoint, and the deaths of engines are counted.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at = clock()
        self._known: dict[str, int] = {}
        """Incarnation -> the highest progress that it reported."""
        self._busy: set[str] = set()
        """Incarnations that announced something long and have not ended it."""
        self._engines: dict[str, str] = {}
        """URL of an engine -> its newest incarnation that was up."""

    def receive(self, beat: Beat) -> None:
        """Notes the beat of a living rank."""
        name = beat.incarnation.id
        if beat.progress > self._known.get(name, 0):
            self._known[name] = beat.progress
            self._at = self._clock()
        if beat.busy is not None:
            self._busy.add(name)
        elif name in self._busy:
            self._busy.remove(name)
            self._at = self._clock()

    def receive_engines(self, engines: Iterable[EngineProcess]) -> None:
        """Notes the engines of a pod, as its launcher reports them."""
        for engine in engines:
            if engine.state is EngineState.RUNNING and self._engines.get(engine.url) != engine.incarnation:
                self._engines[engine.url] = engine.incarnation
                self._at = self._clock()

    def tickets_given(self) -> None:
        """Notes the end of a drain: from now on the job can come forward."""
        self._at = self._clock()

    def forget(self, incarnation: str) -> None:
        """An incarnation is over; what it did still counts."""
        self._known.pop(incarnation, None)
        self._busy.discard(incarnation)

    def epoch_opened(self) -> None:
        """All incarnations of ranks are over; engines outlive them."""
        self._known.clear()
        self._busy.clear()

    def age_seconds(self) -> float:
        """Since the job last came forward."""
        return self._clock() - self._at


_SUMMED: dict[tuple[Role, str], str] = {
    (LEADING_ROLE, LOOP_SECONDS): "actor_seconds",
    (LEADING_ROLE, STARVED_SECONDS): "starved_seconds",
    (TICKET_ROLE, LOOP_SECONDS): "rollout_seconds",
    (TICKET_ROLE, WITHHELD_SECONDS): "withheld_seconds",
    (TICKET_ROLE, PASSED_OVER): PASSED_OVER,
    (TICKET_ROLE, TRUNCATED): TRUNCATED,
    (TICKET_ROLE, REWARD_RETRIES): REWARD_RETRIES,
    (TICKET_ROLE, EVALUATION_RETRIES): EVALUATION_RETRIES,
    (TICKET_ROLE, UNREAD): UNREAD,
}
"""Role and counter of its ranks -> the sum over all incarnations."""


_IDLE = {
    "idle/actor": ("starved_seconds", "actor_seconds"),
    "idle/engines": ("withheld_seconds", "rollout_seconds"),
}
"""A figure of steps: lost seconds, and those of which they are a share."""


_EXPORTED = {
    "actor_seconds": "rljob_actor_loop_seconds_total",
    "starved_seconds": "rljob_actor_starved_seconds_total",
    "rollout_seconds": "rljob_rollout_loop_seconds_total",
    "withheld_seconds": "rljob_rollout_withheld_seconds_total",
}


FAMILIES = {
    "rljob_actor_loop_seconds_total": Family("Seconds that the actor's ranks have run."),
    "rljob_actor_starved_seconds_total": Family("Of them, those in which a rank waited for rows."),
    "rljob_rollout_loop_seconds_total": Family("Seconds that rollout ranks have run."),
    "rljob_rollout_withheld_seconds_total": Family(
        "Of them, the part of their engines' capacity that was idle since tickets were withheld."
    ),
}


class Demand:
    """The sums, and what they were when the last step ended."""

    def __init__(self, wall: Callable[[], float]) -> None:
        """`wall` gives Unix seconds."""
        self._wall = wall
        self._since = wall()
        self._sums = dict.fromkeys(_SUMMED.values(), 0.0)
        self._idle: dict[str, float] = {}
        """The figures of `idle_shares`, as they were last."""
        self._seen = dict(self._sums)
        """The sums that these are of."""
        self._reported: defaultdict[str, dict[str, float]] = defaultdict(dict)
        """Incarnation -> what it reported last; counters only grow within an incarnation."""
        self.at_step: DemandObservation | None = None
        """As of the end of the last step that was reported to this coordinator."""

    def receive(self, beat: Beat) -> None:
        """Notes the beat of a living rank. What the first one reports was before this coordinator, or is 0."""
        reported = self._reported[beat.incarnation.id]
        for (role, name), total in _SUMMED.items():
            if beat.incarnation.key.role is role:
                value = beat.counters.get(name, 0.0)
                self._sums[total] += max(0.0, value - reported.get(name, value))
                reported[name] = value

    def forget(self, incarnation: str) -> None:
        """An incarnation is over; what it reported still counts."""
        self._reported.pop(incarnation, None)

    def step_ended(self, step: int) -> None:
        """A step was reported."""
        sums = {name: self._sums[name] for name in _EXPORTED}
        self.at_step = DemandObservation(since=self._since, at=self._wall(), step=step, **sums)

    def idle_shares(self) -> dict[str, float]:
        """Of the time that ranks have reported since the last call, what was lost; as last time where none has."""
        for figure, (lost, whole) in _IDLE.items():
            passed = self._sums[whole] - self._seen[whole]
            if passed > 0:
                self._idle[figure] = min(1.0, (self._sums[lost] - self._seen[lost]) / passed)
                self._seen |= {name: self._sums[name] for name in (lost, whole)}
        return dict(self._idle)

    @property
    def trouble(self) -> dict[str, float]:
        """Prompts that were too long, rewards asked again and judges' replies without a score, by metric.

        Over all rollouts and their incarnations.
        """
        names = (TRUNCATED, REWARD_RETRIES, EVALUATION_RETRIES, UNREAD)
        met = {name: self._sums[name] for name in names if self._sums[name]}
        return {PASSED_OVER: self._sums[PASSED_OVER], **met}

    def epoch_opened(self) -> None:
        """Steps are counted from the restored one on, by new incarnations."""
        self.at_step = None
        self._reported.clear()

    def samples(self) -> Iterator[Sample]:
        """For `/metrics`, as of now."""
        for total, name in _EXPORTED.items():
            yield name, (), self._sums[total]
