"""A user's reward: concurrency, time limit, and results that are no rewards."""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from rljob_workers.rewards import Answer, RewardFailed, RewardMissing, RewardRefused, RewardTimeout, Score
from rljob_workers.rewards.custom import CustomReward
from rljob_workers.rewards.metrics import MAX_METRICS
from rljob_workers.rewards.runners import MAX_THREADS, Call, LoopRunner, Runner, ThreadRunner

LONG_SECONDS = 60.0
"""Never reached."""
SHORT_SECONDS = 0.05

Make = Callable[..., CustomReward]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[CustomReward] = []

    def make_reward(runner: Runner, seconds: float = LONG_SECONDS) -> CustomReward:
        made.append(CustomReward("mine:reward", runner, seconds))
        return made[-1]

    yield make_reward
    for reward in made:
        reward.close()


def make_groups(num_groups: int, size: int = 2) -> list[list[Answer]]:
    return [[Answer(f"p{g}", f"{g}.{i}", None, g, i) for i in range(size)] for g in range(num_groups)]


def lengths(answers: Sequence[Answer]) -> list[float]:
    return [answer.group * 10.0 + answer.index for answer in answers]


async def lengths_async(answers: Sequence[Answer]) -> list[float]:
    await asyncio.sleep(0)
    return lengths(answers)


def thread_runner(function: Callable[[Sequence[Answer]], Any]) -> Runner:
    return ThreadRunner(function)


def loop_runner(function: Callable[[Sequence[Answer]], Any]) -> Runner:
    async def call(answers: Sequence[Answer]) -> Any:
        return function(answers)

    return LoopRunner(call)


both = pytest.mark.parametrize("runner_of", [thread_runner, loop_runner], ids=["plain", "async"])


@both
def test_scores_keep_the_order_of_groups_and_answers(runner_of: Callable[..., Runner], make: Make) -> None:
    groups = make_groups(3 * MAX_THREADS)
    reward = make(runner_of(lengths))
    assert reward.score_groups(groups) == [[group[0].group * 10.0, group[0].group * 10.0 + 1] for group in groups]
    assert reward.score_groups([]) == []


def test_plain_functions_overlap(make: Make) -> None:
    """Two groups meet inside the function: one after the other would never get through."""
    both = threading.Barrier(2, timeout=LONG_SECONDS)

    def meet(answers: Sequence[Answer]) -> list[float]:
        both.wait()
        return [0.0] * len(answers)

    assert make(ThreadRunner(meet)).score_groups(make_groups(2)) == [[0.0, 0.0]] * 2


def test_async_functions_overlap_on_one_loop_that_stays(make: Make) -> None:
    loops = set()
    arrived: list[int] = []

    async def meet(answers: Sequence[Answer]) -> list[float]:
        loops.add(asyncio.get_running_loop())
        arrived.append(answers[0].group)
        while len(arrived) < 20:
            await asyncio.sleep(0)
        return [0.0] * len(answers)

    reward = make(LoopRunner(meet))
    reward.score_groups(make_groups(20))
    reward.score_groups(make_groups(1))
    assert len(loops) == 1


@both
@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        pytest.param([1.0], r"returned 1 values for the 2 answers to the prompt 'p0' \(group 0\)", id="too few"),
        pytest.param([1.0] * 3, "returned 3 values for the 2 answers", id="too many"),
        pytest.param([], "returned 0 values for the 2 answers", id="none"),
        pytest.param(None, "returned None for the 2 answers", id="nothing"),
        pytest.param(1.0, r"returned 1\.0 for the 2 answers", id="one number"),
        pytest.param("12", "returned '12' for the 2 answers", id="text"),
        pytest.param({0: 1.0, 1: 2.0}, "returned {0: 1.0, 1: 2.0} for the 2 answers", id="a mapping"),
        pytest.param([1.0, "1.0"], r"returned '1\.0' for answer 1", id="a number as text"),
        pytest.param(
            [Score(1.0, {"a b": 1.0}), 1.0], r"returned the metric 'a b' = 1\.0\. Its name", id="a metric's name"
        ),
    ],
)
def test_results_that_are_no_rewards_are_refused(
    runner_of: Callable[..., Runner], result: Any, sentence: str, make: Make
) -> None:
    with pytest.raises(RewardRefused, match=rf"rollout\.reward\.custom\.function: mine:reward {sentence}"):
        make(runner_of(lambda answers: result)).score_groups(make_groups(1))


@both
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        pytest.param(math.nan, "returned nan for answer 1 to the prompt 'p0' .*A reward is a finite float", id="NaN"),
        pytest.param(-math.inf, "returned -inf for answer 1", id="infinite"),
        pytest.param(1e39, r"returned 1e\+39 for answer 1", id="infinite as float32"),
        pytest.param(10**400, "returned 1000.* for answer 1", id="more than a float can be"),
        pytest.param(np.float32("nan"), "returned .*nan.* for answer 1", id="NumPy's NaN"),
        pytest.param(Score(math.nan), r"returned Score\(reward=nan.* for answer 1", id="a Score of NaN"),
        pytest.param(Score(1.0, {"n": math.nan}), "returned the metric 'n' = nan", id="a metric of NaN"),
    ],
)
def test_what_is_not_finite_fails_its_own_answer_alone(
    runner_of: Callable[..., Runner], given: Any, sentence: str, make: Make
) -> None:
    ((first, failed),) = make(runner_of(lambda answers: [1.0, given])).score_groups(make_groups(1))
    assert first == 1.0
    assert isinstance(failed, RewardFailed)
    assert re.match(rf"rollout\.reward\.custom\.function: mine:reward {sentence}", str(failed))


@pytest.mark.parametrize("result", [(1, True), np.array([1.0, 1.0], np.float32), [np.float64(1), 1]])
def test_other_numbers_are_taken(result: Any, make: Make) -> None:
    assert make(ThreadRunner(lambda answers: result)).score_groups(make_groups(1)) == [[1.0, 1.0]]


def test_a_coroutine_from_a_plain_function_is_refused(make: Make) -> None:
    async def later() -> list[float]:
        return [1.0, 1.0]

    coroutine = later()
    with pytest.raises(RewardRefused, match="returned <coroutine object"):
        make(ThreadRunner(lambda answers: coroutine)).score_groups(make_groups(1))
    coroutine.close()


def test_a_score_has_metrics_as_floats_and_may_stand_beside_a_float(make: Make) -> None:
    numbers: Any = (np.float32(0.5), {"length": 3, "tool/calls": np.int64(2)})
    given = [Score(*numbers), 1.0]
    (scored,) = make(ThreadRunner(lambda answers: given)).score_groups(make_groups(1))
    assert scored == [Score(0.5, {"length": 3.0, "tool/calls": 2.0}), 1.0]


def test_more_metrics_than_a_report_may_have_are_refused(make: Make) -> None:
    def by_group(answers: Sequence[Answer]) -> list[Score]:
        return [Score(0.0, {f"of_{answer.group}": 1.0}) for answer in answers]

    reward = make(ThreadRunner(by_group))
    reward.score_groups(make_groups(MAX_METRICS))
    with pytest.raises(RewardRefused, match="mine:reward has returned more than 64 different metrics"):
        reward.score_groups(make_groups(MAX_METRICS + 1))


@both
@pytest.mark.parametrize(
    "error", [KeyError("label"), TimeoutError("their server"), SystemExit(3), asyncio.CancelledError()], ids=repr
)
def test_what_it_raises_is_reported_with_the_prompt(
    error: BaseException, runner_of: Callable[..., Runner], make: Make
) -> None:
    def fail(answers: Sequence[Answer]) -> list[float]:
        if answers[0].group == 1:
            raise error
        return lengths(answers)

    first, failed, last = make(runner_of(fail)).score_groups(make_groups(3))
    assert (first, last) == ([0.0, 1.0], [20.0, 21.0]), "others of the same call are scored"
    for outcome in failed:
        assert isinstance(outcome, RewardFailed)
        assert f"mine:reward raised {type(error).__name__} on the prompt 'p1'" in str(outcome)
        assert outcome.__cause__ is error


@both
@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        pytest.param(ValueError("the table has no such row"), True, id="a ValueError says never"),
        pytest.param(UnicodeError("torn"), False, id="a text may be another"),
    ],
)
def test_a_function_may_state_that_it_never_can(
    error: Exception, is_final: bool, runner_of: Callable[..., Runner], make: Make
) -> None:
    def fail(answers: Sequence[Answer]) -> list[float]:
        raise error

    reward = make(runner_of(fail))
    if is_final:
        with pytest.raises(RewardRefused, match=r"mine:reward raised ValueError on the prompt 'p0'.*no such row"):
            reward.score_groups(make_groups(1))
    else:
        assert [type(outcome) for outcome in reward.score_groups(make_groups(1))[0]] == [RewardFailed] * 2


@both
def test_a_function_may_have_no_score_for_an_answer(runner_of: Callable[..., Runner], make: Make) -> None:
    (outcomes,) = make(runner_of(lambda answers: [1.0, None])).score_groups(make_groups(1))
    assert outcomes[0] == 1.0
    assert isinstance(outcomes[1], RewardMissing)
    assert "mine:reward has no score for answer 1 to the prompt 'p0' (group 0)" in str(outcomes[1])


@both
def test_one_that_hangs_is_named_and_others_go_on_later(runner_of: Callable[..., Runner], make: Make) -> None:
    stuck = threading.Event()

    def hang(answers: Sequence[Answer]) -> list[float]:
        if answers[0].group == 2:
            stuck.wait(LONG_SECONDS)
        return lengths(answers)

    reward = make(runner_of(hang), SHORT_SECONDS)
    for _ in range(2):
        hung = reward.score_groups(make_groups(3))[2]
        assert [type(outcome) for outcome in hung] == [RewardTimeout] * 2
        assert "has not scored the prompt 'p2' (group 2) within 0.05 s" in str(hung[0])
        assert str(hung[0]).endswith("timeoutSeconds.")
    stuck.set()
    reward._timeout_seconds = LONG_SECONDS  # these do not hang, however long they take
    assert reward.score_groups(make_groups(2)) == [[0.0, 1.0], [10.0, 11.0]]


def test_an_async_one_that_waits_too_long_is_cancelled(make: Make) -> None:
    cancelled = threading.Event()

    async def wait(answers: Sequence[Answer]) -> list[float]:
        try:
            await asyncio.sleep(LONG_SECONDS)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return lengths(answers)

    ((outcome, _),) = make(LoopRunner(wait), SHORT_SECONDS).score_groups(make_groups(1))
    assert isinstance(outcome, RewardTimeout)
    assert cancelled.wait(LONG_SECONDS)


class CrowdedRunner(Runner):
    """A call waits its turn for several time limits, begins, and is done when it is looked at next."""

    def __init__(self, num_waits: int) -> None:
        self._num_waits = num_waits

    def start(self, group: Sequence[Answer]) -> Call:
        call = Call(group)
        call.future = WaitingFuture(self._num_waits, lengths(group))
        return call

    def drop(self, calls: Sequence[Call]) -> None:
        pass

    def renew(self) -> None:
        pass

    @property
    def num_hanging(self) -> int:
        return 0

    def close(self) -> None:
        pass


class WaitingFuture(Future[Any]):
    def __init__(self, num_waits: int, result: list[float]) -> None:
        super().__init__()
        self._waits_left = num_waits
        self._later = result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._waits_left == 0 and not self.done():
            self.set_result(self._later)
        self._waits_left -= 1
        return super().exception(0)


def test_waiting_for_a_turn_is_not_the_functions_time(make: Make) -> None:
    assert make(CrowdedRunner(5), SHORT_SECONDS).score_groups(make_groups(1)) == [[0.0, 1.0]]


@both
def test_threads_score_side_by_side_and_the_failure_of_one_is_not_the_others(
    runner_of: Callable[..., Runner], make: Make
) -> None:
    """The role scores from several threads; what waits for one must not go down, or hang, with another."""

    def fail(answers: Sequence[Answer]) -> list[float]:
        if answers[0].prompt == "bad":
            raise KeyError("label")
        return lengths(answers)

    reward = make(runner_of(fail))
    bad = [[Answer("bad", "", None, group, 0)] for group in range(3)]
    many = make_groups(3 * MAX_THREADS)
    with ThreadPoolExecutor(8) as pool:
        good = [pool.submit(reward.score_groups, many) for _ in range(4)]
        failing = [pool.submit(reward.score_groups, [*bad, *many]) for _ in range(4)]
        for call in failing:
            outcomes = call.result(LONG_SECONDS)
            assert [type(outcome) for (outcome,) in outcomes[:3]] == [RewardFailed] * 3
            assert outcomes[3:] == reward.score_groups(many)
        assert all(call.result(LONG_SECONDS) == reward.score_groups(many) for call in good)


@both
def test_calls_of_others_are_served_while_every_thread_hangs(runner_of: Callable[..., Runner], make: Make) -> None:
    stuck = threading.Event()

    def hang(answers: Sequence[Answer]) -> list[float]:
        if answers[0].prompt == "hang":
            stuck.wait(LONG_SECONDS)
        return lengths(answers)

    reward = make(runner_of(hang), SHORT_SECONDS)
    hanging = [[Answer("hang", "", None, group, 0)] for group in range(MAX_THREADS)]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(reward.score_groups, hanging)
        assert {type(outcome) for (outcome,) in first.result(LONG_SECONDS)} == {RewardTimeout}
        reward._timeout_seconds = LONG_SECONDS  # the others do not hang, however long they take
        second = pool.submit(reward.score_groups, make_groups(2))
        assert second.result(LONG_SECONDS) == [[0.0, 1.0], [10.0, 11.0]]
    stuck.set()


@both
def test_too_many_calls_that_hang_end_the_job_by_name(
    runner_of: Callable[..., Runner], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_workers.rewards.custom.MAX_HANGING", 2)
    stuck = threading.Event()

    def hang(answers: Sequence[Answer]) -> list[float]:
        stuck.wait(LONG_SECONDS)
        return lengths(answers)

    reward = make(runner_of(hang), SHORT_SECONDS)
    for _ in range(2):
        ((outcome, _),) = reward.score_groups(make_groups(1))
        assert isinstance(outcome, RewardTimeout)
    with pytest.raises(RewardRefused, match=r"More than 2 of its calls hang.*time limit of its own"):
        reward.score_groups(make_groups(1))
    stuck.set()


@both
def test_a_call_that_returns_late_hangs_no_more(runner_of: Callable[..., Runner], make: Make) -> None:
    stuck = threading.Event()

    def hang(answers: Sequence[Answer]) -> list[float]:
        stuck.wait(LONG_SECONDS)
        return lengths(answers)

    runner = runner_of(hang)
    make(runner, SHORT_SECONDS).score_groups(make_groups(1))
    assert runner.num_hanging == 1
    stuck.set()
    while runner.num_hanging:
        threading.Event().wait(0.001)
