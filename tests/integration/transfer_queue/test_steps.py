"""Several optimizer steps of a rollout: which rows each of them has is fixed before a row is generated."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_api.names import Role, RolloutId
from rljob_api.spec.training import ClaimPolicy
from rljob_workers.transfer_queue.errors import Mismatch
from rljob_workers.transfer_queue.types import Batch, NotReady, QueueShape, Task, TaskKind
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.servers import Servers
from tests.integration.transfer_queue.world import TRAIN, make_shape
from tests.weights import weight

MakeJob = Callable[..., Job]


@dataclass(frozen=True)
class Cut:
    """A rollout of `groups` groups, its optimizer steps and the slices of each, and how a slice is dealt."""

    groups: int
    samples: int
    steps: int
    slices: int
    policy: ClaimPolicy

    @property
    def shape(self) -> QueueShape:
        train = Task("actor_train", TaskKind.TRAINING, ("tokens", "rewards"), (), self.policy, self.step_rows)
        return replace(make_shape(batch=self.groups, samples=self.samples, staleness=0), tasks=(train,))

    @property
    def step_rows(self) -> int:
        return self.groups * self.samples // self.steps

    @property
    def slice_rows(self) -> int:
        return self.step_rows // self.slices


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    policy = draw(st.sampled_from(list(ClaimPolicy)))
    steps, slices = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    samples = draw(st.sampled_from([1, 2, 3, 4]))
    whole = steps * slices
    groups = whole * draw(st.integers(1, 3)) if policy is ClaimPolicy.GROUP else draw(st.integers(1, 8))
    samples = samples if groups * samples % whole == 0 else whole
    return Cut(groups, samples, steps, slices, policy)


def places(groups: int, rollout: int) -> list[int]:
    """What `ready.lua` shuffles, written again."""
    order, state = list(range(groups)), int(hashlib.sha1(f"train_{rollout}".encode()).hexdigest()[:7], 16) + 1
    for last in range(groups - 1, 0, -1):
        state = state * 48271 % 2147483647
        other = state % (last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def rows_of_steps(cut: Cut, rollout: int) -> list[list[int]]:
    steps: list[list[int]] = [[] for _ in range(cut.steps)]
    order = places(cut.groups, rollout)
    for row in range(cut.groups * cut.samples):
        group, index = divmod(row, cut.samples)
        steps[(order[group] * cut.samples + index) // cut.step_rows].append(row)
    return steps


def claimed(job: Job, cut: Cut, index: int, rollout: int = 0) -> list[int] | None:
    answer = job.actor.claim_training(TRAIN.name, RolloutId(rollout), index, cut.slice_rows, 0, 1, timeout=0)
    return answer.rows.tolist() if isinstance(answer, Batch) else None


@pytest.fixture(scope="module")
def empty(shared_servers: Servers) -> Iterator[Callable[[QueueShape], Job]]:
    jobs: list[Job] = []

    def make(shape: QueueShape) -> Job:
        for job in jobs:
            job.close()
        jobs.clear()
        shared_servers.wipe()
        jobs.append(Job(shared_servers, shape))
        return jobs[0]

    yield make
    for job in jobs:
        job.close()


@given(cut=cuts(), seed=st.integers(0, 2**16))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_row_is_in_its_step_in_whatever_order_rows_become_ready(
    empty: Callable[[QueueShape], Job], cut: Cut, seed: int
) -> None:
    """Groups are put in a random order; a step's slice is there as soon as enough rows of the step are."""
    random = Random(seed)
    job = empty(cut.shape)
    tickets = job.tickets(cut.groups)
    random.shuffle(tickets)
    expected = rows_of_steps(cut, 0)
    arrived: list[list[int]] = [[] for _ in range(cut.steps)]
    taken: dict[int, list[int]] = {}
    for ticket in tickets:
        assert job.put([ticket]) == [True]
        rows = range(ticket.group * cut.samples, (ticket.group + 1) * cut.samples)
        for step, mine in enumerate(expected):
            arrived[step] += [row for row in rows if row in mine] if cut.steps > 1 else rows
        for index in range(cut.steps * cut.slices):
            step, place = divmod(index, cut.slices)
            if index in taken or (place and index - 1 not in taken):
                continue
            got = claimed(job, cut, index)
            waiting = arrived[step][place * cut.slice_rows :][: cut.slice_rows]
            assert got == (sorted(waiting) if len(waiting) == cut.slice_rows else None)
            if got is not None:
                taken[index] = got
        job.check()
    assert sorted(itertools.chain(*taken.values())) == list(range(cut.groups * cut.samples))
    job.actor.commit_training(TRAIN.name, RolloutId(0), taken)
    job.check()


def steps_of(job: Job, cut: Cut, rollout: int) -> list[list[int]]:
    """The rows of every step, claimed from the last step to the first."""
    steps: dict[int, list[int]] = {}
    for step in reversed(range(cut.steps)):
        slices = [claimed(job, cut, step * cut.slices + place, rollout) for place in range(cut.slices)]
        assert None not in slices
        steps[step] = sorted(itertools.chain.from_iterable(rows or [] for rows in slices))
    return [steps[step] for step in range(cut.steps)]


CUT = Cut(groups=9, samples=4, steps=6, slices=2, policy=ClaimPolicy.BALANCED)
"""Steps of one and a half groups."""


def test_rows_of_a_rollout_that_was_partly_trained_are_dealt_whole_again_after_a_restart(make_job: MakeJob) -> None:
    """Slices of the first steps were committed, one of the next was claimed: the epoch before is void."""
    job = make_job(CUT.shape)
    job.put(job.tickets(CUT.groups))
    for index in (0, 1, 2):
        assert claimed(job, CUT, index) is not None
    job.actor.commit_training(TRAIN.name, RolloutId(0), [0, 1])
    job.raise_epoch(2)
    job.actor = job.client(Role.ACTOR)
    assert steps_of(job, CUT, 0) == rows_of_steps(CUT, 0)
    job.actor.commit_training(TRAIN.name, RolloutId(0), range(CUT.steps * CUT.slices))
    job.publish(1, 2)


def test_each_rollout_is_shuffled_its_own_way(make_job: MakeJob) -> None:
    job = make_job(CUT.shape)
    dealt = []
    for rollout in range(3):
        held = weight(rollout)
        job.put(job.tickets(CUT.groups, held), held)
        dealt.append(steps_of(job, CUT, rollout))
        assert dealt[rollout] == rows_of_steps(CUT, rollout)
        job.actor.commit_training(TRAIN.name, RolloutId(rollout), range(CUT.steps * CUT.slices))
        job.publish(rollout + 1)
    assert len({str(steps) for steps in dealt}) == 3


def test_a_redrawn_group_stays_in_its_step(make_job: MakeJob) -> None:
    job = make_job(CUT.shape)
    first, *others = job.tickets(CUT.groups)
    job.put(others)
    job.put([job.rollout.redraw(first, "filtered")])
    assert steps_of(job, CUT, 0) == rows_of_steps(CUT, 0)


def test_a_group_that_is_lost_and_issued_again_stays_in_its_step(make_job: MakeJob) -> None:
    job = make_job(CUT.shape)
    for ticket in job.tickets(CUT.groups):
        job.put([ticket])
    job.servers.empty_unit(0)
    assert job.admin.upkeep.probe() == [0]
    lost = job.admin.upkeep.declare_lost(0)
    assert 0 < lost.reissued < CUT.groups
    job.check()
    job.put(job.tickets(CUT.groups))
    assert steps_of(job, CUT, 0) == rows_of_steps(CUT, 0)


@pytest.mark.parametrize(("before", "after"), [(None, 6), (6, None), (6, 12)])
def test_a_resumed_job_may_make_other_steps_of_the_rows_that_are_there(
    make_job: MakeJob, before: int | None, after: int | None
) -> None:
    """None: one step, as a release that knew none dealt them all. A slice of the partition was committed."""

    def shape(step_rows: int | None) -> QueueShape:
        return replace(CUT.shape, tasks=(replace(CUT.shape.tasks[0], rows_per_step=step_rows),))

    job = make_job(shape(before))
    job.put(job.tickets(CUT.groups - 1))
    if claimed(job, CUT, 0) is not None:
        job.actor.commit_training(TRAIN.name, RolloutId(0), [0])
    restore = job.reopen(shape(after), 2)
    assert (restore.kept_groups, restore.dropped_groups) == (CUT.groups - 1, 0)
    assert job.admin.adopted_layout is not None
    assert job.admin.adopted_layout.what == "other optimizer steps of a rollout"
    job.put(job.tickets(1))
    cut = CUT if after is None else replace(CUT, steps=CUT.groups * CUT.samples // after)
    cut = cut if after else replace(CUT, steps=1)
    assert steps_of(job, cut, 0) == (rows_of_steps(cut, 0))


def test_a_slice_with_rows_of_two_steps_is_refused(make_job: MakeJob) -> None:
    job = make_job(CUT.shape)
    job.put(job.tickets(CUT.groups))
    with pytest.raises(Mismatch, match="batch 1 of 4 rows would have rows of two optimizer steps of 6"):
        job.actor.claim_training(TRAIN.name, RolloutId(0), 1, 4, 0, 1, timeout=0)


def test_a_step_waits_for_its_own_rows(make_job: MakeJob) -> None:
    """Rows of the others do not make it begin, also where they are many."""
    job = make_job(CUT.shape)
    needed = {row // CUT.samples for row in rows_of_steps(CUT, 0)[0]}
    tickets = job.tickets(CUT.groups)
    job.put([ticket for ticket in tickets if ticket.group not in needed])
    answer = job.actor.claim_training(TRAIN.name, RolloutId(0), 0, CUT.slice_rows, 0, 1, timeout=0)
    assert isinstance(answer, NotReady)


@pytest.mark.parametrize(
    ("step_rows", "policy", "sentence"),
    [
        (5, ClaimPolicy.FIFO, "optimizer steps of 5 rows do not divide the 36 rows of a partition"),
        (0, ClaimPolicy.FIFO, "optimizer steps of 0 rows do not divide"),
        (6, ClaimPolicy.GROUP, "optimizer steps of 6 rows are no whole groups of 4"),
    ],
)
def test_steps_that_cannot_be_full_are_refused(step_rows: int, policy: ClaimPolicy, sentence: str) -> None:
    task = replace(CUT.shape.tasks[0], rows_per_step=step_rows, policy=policy)
    with pytest.raises(ValueError, match=sentence):
        replace(CUT.shape, tasks=(task,))


def test_neighbouring_groups_go_to_different_steps() -> None:
    """Of 200 rollouts with 64 groups in 4 steps, group 0 and its neighbour are as often together as by chance."""
    together = sum(places(64, rollout)[0] // 16 == places(64, rollout)[1] // 16 for rollout in range(200))
    assert 25 <= together <= 75
