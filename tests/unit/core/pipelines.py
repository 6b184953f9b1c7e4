"""A pipeline in steps of simulated time: engines that draw tickets, a gate, an actor that trains rollout after rollout.

It counts what a coordinator counts. Every group takes as long in a slot of an engine, every rollout as long to train.
"""

from dataclasses import dataclass, field

from rljob_api.wire.observation import DemandObservation

SLOTS = 4
"""Groups that an engine generates at once."""


@dataclass
class Pipeline:
    """A job's rollouts and actor."""

    generation_seconds: float
    """Of one rollout by one replica."""
    training_seconds: float
    staleness: int
    replicas: int
    batch: int = 48
    """Groups of a rollout."""
    resolution: float = 0.25
    """Simulated seconds of a turn."""
    now: float = 0.0
    step: int = -1
    """Last trained rollout."""
    at_step: DemandObservation | None = None
    _slots: list[float] = field(default_factory=list)
    """Of each busy slot: when its group is done."""
    _drawn: int = 0
    """Groups that were drawn since the beginning."""
    _made: int = 0
    _trained_at: float | None = None
    """When the rollout in training is trained."""
    _sums: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("actor_seconds", "starved_seconds", "rollout_seconds", "withheld_seconds"), 0.0
        )
    )

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        until = self.now + seconds
        while self.now < until:
            self._turn()

    def run_step(self, limit: float) -> None:
        """Until the next step has ended, or for so long."""
        before, until = self.step, self.now + limit
        while self.step == before and self.now < until:
            self._turn()

    def _turn(self) -> None:
        capacity = self.replicas * SLOTS
        group_seconds = self.generation_seconds * SLOTS / self.batch
        self._made += sum(done <= self.now for done in self._slots)
        self._slots = [done for done in self._slots if done > self.now]
        open_groups = (self.step + 1 + self.staleness + 1) * self.batch
        drawn = max(0, min(capacity - len(self._slots), open_groups - self._drawn))
        self._slots += [self.now + group_seconds] * drawn
        self._drawn += drawn
        idle = max(0, capacity - len(self._slots)) / capacity if self._drawn >= open_groups else 0.0
        if self._trained_at is not None and self._trained_at <= self.now:
            self._trained_at, self.step = None, self.step + 1
            self.at_step = DemandObservation(since=0.0, at=self.now, step=self.step, **self._sums)
        if self._trained_at is None and self._made >= (self.step + 2) * self.batch:
            self._trained_at = self.now + self.training_seconds
        self._count(idle)
        self.now += self.resolution

    def _count(self, idle: float) -> None:
        self._sums["actor_seconds"] += self.resolution
        self._sums["starved_seconds"] += self.resolution * (self._trained_at is None)
        self._sums["rollout_seconds"] += self.resolution * self.replicas
        self._sums["withheld_seconds"] += self.resolution * self.replicas * idle
