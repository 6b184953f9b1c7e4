"""mathVerify by its real processes: verdicts from several threads, and one that overruns is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rljob_workers.rewards import Answer, RewardMissing, math_answers
from rljob_workers.rewards.math_answers import MathVerify, gold_text


@pytest.fixture(scope="module")
def reward() -> Iterator[MathVerify]:
    """With one process, whose imports cost a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(math_answers, "NUM_PROCESSES", 1)
        made = MathVerify(2, "rollout.reward.mathVerify")
    yield made
    made.close()


def scored(reward: MathVerify, label: str, response: str) -> object:
    ((score,),) = reward.score_groups([[Answer("p", response, label, 0, 0)]])
    return score


@pytest.mark.parametrize(
    ("label", "response", "expected"),
    [
        pytest.param("She sold 52/2 = <<52/2=26>>26.\n#### 1,400", r"so \boxed{1400}", 1.0, id="as GSM8K has it"),
        pytest.param("#### 78", "The sum is 78.", 1.0, id="the last number"),
        pytest.param("#### 78", "The sum is 79.", 0.0, id="another number"),
        pytest.param(r"\frac{1}{2}", "$0.5$", 1.0, id="a fraction without dollars"),
        pytest.param("$x^2+1$", r"\boxed{1+x^2}", 1.0, id="a polynomial"),
        pytest.param(r"$\{1,2\}$", r"\boxed{\{2,1\}}", 1.0, id="a set"),
        pytest.param("5", "I do not know", 0.0, id="no answer"),
    ],
)
def test_verdicts(reward: MathVerify, label: str, response: str, expected: float) -> None:
    assert scored(reward, label, response) == expected


def test_threads_ask_at_the_same_time(reward: MathVerify) -> None:
    """Where math-verify itself would refuse, since its time limit is a signal."""
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda n: scored(reward, f"{n % 3}", rf"\boxed{{{n}}}"), range(12)))
    assert found == [1.0] * 3 + [0.0] * 9


def test_a_label_that_is_no_expression_has_no_score(reward: MathVerify) -> None:
    missing = scored(reward, "no number here", "5")
    assert isinstance(missing, RewardMissing)
    assert str(missing).startswith("rollout.reward.mathVerify: the label 'no number here' of the prompt 'p' is no exp")


def test_a_check_that_takes_for_ever_ends_with_nothing_and_later_ones_go_on(reward: MathVerify) -> None:
    assert scored(reward, "7", r"$9^{9^{9^{9}}}$") == 0.0
    assert scored(reward, "7", "7") == 1.0


def test_a_process_that_dies_is_replaced(reward: MathVerify) -> None:
    """The answer that it had in hand gets nothing."""
    process = reward._idle.get()
    assert process is not None
    process._child.kill()
    reward._idle.put(process)
    assert scored(reward, "7", "7") == 0.0
    assert scored(reward, "7", "7") == 1.0


def test_what_of_a_label_counts() -> None:
    assert gold_text("a #### b\n#### 12 ") == "12"
    assert gold_text(" 12") == "12"
