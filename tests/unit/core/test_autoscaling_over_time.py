"""An hour of autoscaling beside a simulated pipeline: it comes to what is needed, rests there, and never flaps."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.names import Epoch, Role
from rljob_api.status import ConditionType, PodStatus, RLJobStatus, RoleStatus
from rljob_operator.core import Autoscaling, Observed
from rljob_operator.core.autoscaling import autoscaled
from rljob_operator.core.conditions import with_condition
from tests.unit.core.pipelines import Pipeline
from tests.unit.core.worlds import make_autoscaling, make_coordinator, make_policy

HOUR = 3600.0
JOINING_SECONDS = 40.0
"""From a decision until the replica is ready, or has drained."""


@dataclass
class Job:
    """The rollouts of a job and what autoscaling says; replicas come and go a while after they were decided."""

    pipeline: Pipeline
    autoscaling: Autoscaling
    status: RLJobStatus = field(init=False)
    decided: list[tuple[float, int]] = field(default_factory=list)
    """When each decision was made, and for how many."""
    _done_at: float | None = None

    def __post_init__(self) -> None:
        self.status = self._with_pods(RLJobStatus(), self.pipeline.replicas)
        scaling = self.status.scaling.model_copy(update={"desired": self.pipeline.replicas})
        self.status = self.status.model_copy(update={"scaling": scaling})

    @property
    def desired(self) -> int:
        return self.status.scaling.desired

    def run(self, seconds: float) -> None:
        until = self.pipeline.now + seconds
        while self.pipeline.now < until:
            waiting = until if self._done_at is None else min(until, self._done_at)
            self.pipeline.run_step(max(waiting - self.pipeline.now, self.pipeline.resolution))
            self._move()
            self.decide()

    def decide(self, *, ready: bool = True) -> None:
        now, before = self.pipeline.now, self.desired
        joins = self.pipeline.replicas < self.desired
        self.status = self._with_ready(ready=ready and not joins)
        coordinator = make_coordinator(self.status, [], epoch=Epoch(0), demand=self.pipeline.at_step)
        observed = Observed(
            policy=make_policy(),
            replicas={Role.ROLLOUT: self.autoscaling.spec.min_replicas},
            num_rollouts=1_000_000,
            status=self.status,
            coordinator=coordinator,
            autoscaling=self.autoscaling,
        )
        self.status = autoscaled(observed, self.status, now)
        if self.desired != before:
            assert self._done_at is None, "a decision is carried out before the next one"
            self.decided.append((now, self.desired))
            self._done_at = now + JOINING_SECONDS
            self.status = self._with_pods(self.status, self.pipeline.replicas)

    def _move(self) -> None:
        if self._done_at is not None and self.pipeline.now >= self._done_at:
            self.pipeline.replicas, self._done_at = self.desired, None
            self.status = self._with_pods(self.status, self.desired)

    def _with_ready(self, *, ready: bool) -> RLJobStatus:
        reason = "Ready" if ready else "Restarting"
        return with_condition(
            self.status, ConditionType.READY, self.pipeline.now, true=ready, reason=reason, message=reason
        )

    @staticmethod
    def _with_pods(status: RLJobStatus, count: int) -> RLJobStatus:
        pods = [PodStatus(name=f"rollout-{n}", ready=True, generation=0) for n in range(count)]
        role = RoleStatus(name=Role.ROLLOUT, replicas=count, ready=count, failures=0, pods=pods)
        return status.model_copy(update={"roles": [role]})


def turns(decided: list[tuple[float, int]], first: int) -> int:
    """How often the direction changed."""
    counts = [first, *(count for _, count in decided)]
    signs = [after > before for before, after in pairwise(counts)]
    return sum(one != other for one, other in pairwise(signs))


DEMANDS = [
    pytest.param(Pipeline(100, 20, 1, replicas=1), 5, 6, id="five times as many are needed"),
    pytest.param(Pipeline(20, 100, 1, replicas=8), 1, 1, id="one of eight is enough"),
    pytest.param(Pipeline(10, 2, 1, replicas=1), 5, 7, id="steps of seconds"),
    pytest.param(Pipeline(300, 60, 1, replicas=1), 5, 5, id="steps of minutes"),
    pytest.param(Pipeline(100, 51, 1, replicas=8), 2, 2, id="just below two"),
    pytest.param(Pipeline(100, 25, 4, replicas=8), 4, 5, id="far ahead"),
    pytest.param(Pipeline(100, 25, 0, replicas=1), 4, 4, id="strictly on-policy, where one side always waits"),
    pytest.param(Pipeline(100, 5, 1, replicas=1), 8, 8, id="more than there may be"),
]
"""Pipeline, what it needs, and the most that it may come to: a pipeline of whole groups has losses of its own."""


@pytest.mark.parametrize(("pipeline", "needed", "most"), DEMANDS)
def test_it_comes_to_what_is_needed_and_stays(pipeline: Pipeline, needed: int, most: int) -> None:
    """Within an hour."""
    pipeline = replace(pipeline)
    first = pipeline.replicas
    job = Job(pipeline, make_autoscaling(pipeline.staleness))
    job.run(HOUR)
    assert needed <= job.desired <= most, job.decided
    assert turns(job.decided, first) == 0
    settled = len(job.decided)
    job.run(HOUR)
    assert len(job.decided) == settled, job.decided


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_an_hour_of_any_demand(data: st.DataObject) -> None:
    """Never beyond the bounds nor in a restart; no decision sooner than its patience after the one before."""
    low = data.draw(st.integers(1, 4), "minReplicas")
    autoscaling = make_autoscaling(
        data.draw(st.integers(0, 3), "maxStaleness"),
        min_replicas=low,
        max_replicas=low + data.draw(st.integers(0, 8)),
        scale_up_after_seconds=data.draw(st.integers(10, 300)),
        scale_down_after_seconds=data.draw(st.integers(10, 600)),
        tolerance=data.draw(st.sampled_from([0.01, 0.1, 0.3])),
    )
    spec = autoscaling.spec
    pipeline = Pipeline(10, 10, autoscaling.max_staleness, replicas=low, resolution=1.0)
    job = Job(pipeline, autoscaling)
    while pipeline.now < HOUR:
        pipeline.generation_seconds = data.draw(st.floats(4, 600), "generation")
        pipeline.training_seconds = data.draw(st.floats(1, 200), "training")
        job.run(data.draw(st.floats(60, 900), "for"))
        before = job.desired
        if data.draw(st.booleans(), "restart"):
            job.decide(ready=False)
            assert job.desired == before
            assert job.status.scaling.up_since is job.status.scaling.down_since is None
    assert all(spec.min_replicas <= count <= spec.max_replicas for _, count in job.decided)
    for (then, before), (now, after) in pairwise([(0.0, low), *job.decided]):
        patience = spec.scale_up_after_seconds if after > before else spec.scale_down_after_seconds
        assert now - then >= patience
        assert ceil(before / 2) <= after <= 2 * before
        assert after != before
    assert turns(job.decided, low) <= HOUR / spec.scale_down_after_seconds


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_a_constant_demand_comes_to_rest(data: st.DataObject) -> None:
    """Noise within the tolerance moves nothing, whatever the number is that it came to.

    A step takes whole seconds here: shorter ones than these would add more noise than the tolerance.
    """
    staleness = data.draw(st.integers(0, 2), "maxStaleness")
    training = data.draw(st.floats(40, 60), "training")
    generation = training * data.draw(st.floats(0.3, 12), "needed")
    first = data.draw(st.integers(1, 8), "replicas")
    job = Job(
        Pipeline(generation, training, staleness, replicas=first, resolution=1.0),
        make_autoscaling(staleness, scale_up_after_seconds=10, scale_down_after_seconds=10),
    )
    job.run(2 * HOUR)
    assert turns(job.decided, first) <= 1, job.decided
    settled = len(job.decided)
    for _ in range(20):
        job.pipeline.training_seconds = training * data.draw(st.floats(0.97, 1.03), "noise")
        job.run(HOUR / 20)
    assert len(job.decided) <= settled + 1, job.decided
