"""The cluster of the core's tests, with what else may be observed of a job, and every turn that was decided."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from rljob_api.status import RLJobStatus
from rljob_api.wire.failures import FailureKind
from rljob_api.wire.identity import PodKey
from rljob_operator.core import Observed, decide
from tests.unit.core.cluster import Cluster
from tests.unit.core.worlds import make_failure


@dataclass(frozen=True, slots=True)
class Turn:
    """Facts and time that a decision was made from."""

    observed: Observed
    now: float


@dataclass(frozen=True, slots=True)
class DeletedTurn:
    """The same for a job that is being deleted."""

    status: RLJobStatus
    finalizers: tuple[str, ...]
    has_pods: bool
    now: float


@dataclass
class World(Cluster):
    """A cluster whose turns are recorded."""

    beside: dict[str, Any] = field(default_factory=dict)
    """Fields of `Observed` that `Cluster` leaves as they are."""
    stated: dict[str, Any] = field(default_factory=dict)
    """Fields of the coordinator's status that `Cluster` leaves as they are."""
    engines: dict[PodKey, list[Any]] = field(default_factory=dict)
    """Engines of pods, as their launchers report them."""
    stopped: set[PodKey] = field(default_factory=set)
    """Pods whose first process is stopped (SIGSTOP)."""
    turns: list[Turn | DeletedTurn] = field(default_factory=list)

    def observe(self) -> Observed:
        """Retains what is observed: a turn observes once."""
        observed = replace(super().observe(), **self.beside)
        stopped = tuple(replace(fact, stopped=fact.pod in self.stopped) for fact in observed.pods)
        observed = replace(observed, pods=stopped)
        if observed.coordinator is not None:
            pods = [pod.model_copy(update=self._engines_of(pod.pod)) for pod in observed.coordinator.pods]
            coordinator = observed.coordinator.model_copy(update={"pods": pods, **self.stated})
            observed = replace(observed, coordinator=coordinator)
        self.turns.append(Turn(observed, self.now))
        return observed

    def turn_without_actions(self, seconds: float) -> None:
        """An operator that ends after it has persisted what it has decided."""
        self.now += seconds
        self.status = decide(self.observe(), self.now).status

    def delete(self, finalizers: tuple[str, ...], *, has_pods: bool) -> None:
        """A turn of a job that is being deleted."""
        self.now += 1.0
        self.turns.append(DeletedTurn(self.status, finalizers, has_pods, self.now))

    def fail(self, pod: PodKey, **fields: Any) -> None:
        """The coordinator reports a failure of a pod, of the current incarnation unless `fields` say otherwise."""
        epoch, generation = self.status.restart.epoch, self.replica(pod.role, pod.replica).generation
        kind = fields.get("kind", FailureKind.RANK_EXITED)
        id_ = f"{pod}/{epoch}/{generation}/{kind}"
        incarnation = f"{pod.replica:04x}{epoch:04x}{generation:04x}"
        given = {"id": id_, "incarnation": incarnation, "at": self.now, **fields}
        self.failures.append(make_failure(self.status, pod, **given))

    def members(self) -> list[PodKey]:
        """The pods of the status."""
        return [PodKey(role=role.name, replica=n) for role in self.status.roles for n in range(len(role.pods))]

    def _engines_of(self, pod: PodKey) -> dict[str, Any]:
        return {"engines": self.engines[pod]} if pod in self.engines else {}
