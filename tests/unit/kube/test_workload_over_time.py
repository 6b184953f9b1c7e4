"""A job and its Workload over time: whatever Kueue, the user and a dying operator do, no pod is without quota.

The core's world of a job, the operator's tables, and a Kueue that does what Kueue may do. The operator may die after
each of its writes: the next turn is another one's.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rljob_api.status import ConditionType
from rljob_operator.core.conditions import is_true
from rljob_operator.kube.job_workload import with_conditions
from rljob_operator.kube.views import OwnedView, view_owned
from rljob_operator.kube.workload_state import WantedWorkload, admission_of, queue_fact
from rljob_operator.kube.workload_writes import (
    Create,
    Delete,
    GiveBack,
    SetCondition,
    Update,
    Write,
    next_write,
    standing_of,
)
from tests.unit.core.cluster import Cluster
from tests.unit.kube.test_workload_state import make_wanted

Json = dict[str, Any]
SPECS = [make_wanted(), make_wanted("other"), make_wanted(roles={"actor": {"resources": {"requests": {"cpu": "9"}}}})]
MOST_WRITES = 6


@dataclass
class Kueue:
    """The one Workload of the job, and what Kueue does with it."""

    raw: Json | None = None
    version: int = 0
    uids: int = 0

    @property
    def known(self) -> OwnedView | None:
        return None if self.raw is None else view_owned("Workload", self.raw)

    @property
    def has_quota(self) -> bool:
        known = self.known
        return known is not None and known.workload is not None and known.workload.is_true("QuotaReserved")

    def states(self, *conditions: tuple[str, bool, str, str], **status: object) -> None:
        if self.raw is not None:
            self.version += 1
            set_ = {**self.raw["status"], **status, "conditions": with_conditions(self.raw, conditions, 0.0)}
            metadata = {**self.raw["metadata"], "resourceVersion": str(self.version)}
            self.raw = {**self.raw, "metadata": metadata, "status": set_}

    def admits(self) -> None:
        known = self.known
        if known is None or known.workload is None or known.workload.is_true("Finished"):
            return
        if not known.workload.active or self.has_quota:
            return
        self.states(
            ("Evicted", False, "QuotaReserved", ""), ("QuotaReserved", True, "", ""), ("Admitted", True, "", "")
        )

    def evicts(self, reason: str) -> None:
        if self.has_quota:
            self.states(("Evicted", True, reason, "by the test"))

    def carries_out(self, write: Write, wanted: WantedWorkload) -> None:
        """A write of the operator, as the API server and Kueue's webhook take it."""
        match write:
            case Create():
                assert self.raw is None
                self.uids += 1
                metadata = {**wanted.manifest["metadata"], "uid": f"w{self.uids}", "resourceVersion": "0"}
                self.raw = {**wanted.manifest, "metadata": metadata, "status": {}}
                self.states()
            case Update():
                assert self.raw is not None
                assert not self.has_quota, "pod sets are immutable while quota is reserved"
                metadata = {**self.raw["metadata"], "annotations": wanted.manifest["metadata"]["annotations"]}
                self.raw = {**self.raw, "metadata": metadata, "spec": wanted.manifest["spec"]}
                self.states()
            case Delete():
                self.raw = None
            case GiveBack(reason, message, again):
                self.states(
                    ("Requeued", again, reason, message), ("QuotaReserved", False, "", ""), ("Admitted", False, "", "")
                )
            case SetCondition(kind, status, reason, message):
                self.states((kind, status, reason, message))


@dataclass
class World:
    """A job with a queue."""

    job: Cluster = field(default_factory=Cluster)
    kueue: Kueue = field(default_factory=Kueue)
    spec: int = 0

    def turn(self, seconds: float, writes: int) -> None:
        """Of an operator that dies before its write of this number to the Workload, if it comes so far."""
        wanted, known = SPECS[self.spec], self.kueue.known
        runs = bool(self.job.status.roles) and not is_true(self.job.status, ConditionType.SUSPENDED)
        admitted = known is not None and known.workload is not None and known.workload.is_true("Admitted")
        admission = admission_of(known.workload, {}) if admitted else None  # type: ignore[union-attr, arg-type]
        self.job.admission = queue_fact(known, wanted, admission, runs=runs)
        had = {pod.uid for pod in self.job.pods}
        self.job.turn(seconds)
        new = [pod for pod in self.job.pods if pod.uid not in had]
        assert not new or self.kueue.has_quota, "a pod was made without quota"
        for _ in range(min(writes, MOST_WRITES)):
            standing = standing_of(self.job.status, num_pods=len(self.job.pods), by_user=self.job.request.suspend)
            write = next_write(self.kueue.known, wanted, standing)
            if write is None:
                return
            gives_up = isinstance(write, Delete | GiveBack | Create)
            assert not (gives_up and self.job.pods), "quota goes, or is asked for, while pods are there"
            self.kueue.carries_out(write, wanted)
        assert writes < MOST_WRITES, "the writes of a turn have no end"

    def happens(self, what: str, how: object) -> None:
        match what, how:
            case "admits", _:
                self.kueue.admits()
            case "evicts", str():
                self.kueue.evicts(how)
            case "deactivates", bool() if self.kueue.raw is not None:
                self.kueue.raw = {**self.kueue.raw, "spec": {**self.kueue.raw["spec"], "active": how}}
                self.kueue.states()
            case "is deleted", _:
                self.kueue.raw = None
            case "suspends", bool():
                self.job.ask(suspend=how)
            case "lingers", bool():
                self.job.stops = not how
            case "changes", int():
                self.spec = how
                self.job.ask(revision=f"r{how}")


HAPPENINGS = st.one_of(
    st.tuples(st.just("admits"), st.just(0)),
    st.tuples(st.just("admits"), st.just(1)),  # as likely as two others
    st.tuples(st.just("evicts"), st.sampled_from(["Preempted", "PodsReadyTimeout", "ClusterQueueStopped"])),
    st.tuples(st.just("deactivates"), st.booleans()),
    st.tuples(st.just("is deleted"), st.just(0)),
    st.tuples(st.just("suspends"), st.booleans()),
    st.tuples(st.just("lingers"), st.booleans()),
    st.tuples(st.just("changes"), st.integers(0, len(SPECS) - 1)),
)
SCHEDULES = st.lists(st.tuples(HAPPENINGS, st.integers(0, 3), st.floats(0.1, 80)), max_size=14)
PREEMPTED = [(("admits", 0), 6, 1.0), (("evicts", "Preempted"), 0, 1.0), (("is deleted", 0), 1, 1.0)]


@settings(deadline=None, max_examples=25)
@given(SCHEDULES)
@example(PREEMPTED)
def test_no_pod_is_without_quota_and_the_job_runs_once_it_is_admitted(
    schedule: list[tuple[tuple[str, object], int, float]],
) -> None:
    world = World()
    world.turn(1, 1)
    for (what, how), writes, seconds in schedule:
        world.happens(what, how)
        world.turn(seconds, writes)
    world.happens("lingers", False)
    world.happens("suspends", False)
    for _ in range(16):
        world.happens("deactivates", True)
        world.kueue.admits()
        world.turn(10, MOST_WRITES)
    status = world.job.status
    assert is_true(status, ConditionType.READY), status
    assert is_true(status, ConditionType.ADMITTED)
    assert status.restart.counted_towards_max == 0, "none of this is a failure of the job"
    known = world.kueue.known
    assert known is not None
    assert known.workload is not None
    assert known.workload.is_true("PodsReady")
    assert next_write(known, SPECS[world.spec], standing_of(status, num_pods=9, by_user=False)) is None
