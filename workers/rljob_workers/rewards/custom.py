"""A user's reward function: called for groups side by side with a time limit, its results checked.

Threads and event loops are `runners`; here are what a function's results must be and the sentences for its user.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn, cast

from rljob_workers.rewards.base import (
    Answer,
    Given,
    Outcome,
    Reward,
    RewardFailed,
    RewardFunction,
    RewardMissing,
    RewardRefused,
    RewardTimeout,
    SampleReward,
    Score,
    named_prompt,
)
from rljob_workers.rewards.keywords import KEYWORD, of_answers, takes_keywords
from rljob_workers.rewards.metrics import MetricNames, as_number, checked_metrics, is_reward
from rljob_workers.rewards.runners import Call, Clock, LoopRunner, Runner, ThreadRunner
from rljob_workers.user_cures import with_cure
from rljob_workers.user_functions import Signature, is_async, load, user_place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rljob_api.spec.rollout import RewardFunctionSpec


_FIELD = "rollout.reward.custom"


OF_GROUP = Signature(1, "the answers of one group", "def reward(answers): return [...]", or_keyword=KEYWORD)


OF_SAMPLE = Signature(1, "one answer", "def reward(answer): return 1.0", or_keyword=KEYWORD)


def load_function(spec: RewardFunctionSpec, field: str = _FIELD) -> RewardFunction | SampleReward:
    """The function that `spec` names. Raises ValueError with a sentence, as `user_functions.load` does."""
    wanted = OF_SAMPLE if spec.per_sample else OF_GROUP
    # A name in a user's module has no type.
    return load(f"{field}.function", spec.function, f"{field}.path", spec.path, wanted)  # type: ignore[no-any-return]


MAX_HANGING = 1000
"""Calls that were given up and have not returned. A plain function that hangs cannot be ended, so that its thread
stays: a job that leaves more of them behind would end by the limits of its machine, without a name."""


class CustomReward(Reward):
    """Calls a user's function; the messages name function and prompt."""

    def __init__(
        self,
        name: str,
        runner: Runner,
        timeout_seconds: float,
        *,
        field: str = _FIELD,
        per_sample: bool = False,
        clock: Clock = time.monotonic,
        named_by: str = "function",
    ) -> None:
        """`runner` takes groups and gives a result for each of their answers, with `per_sample` groups of one.

        `named_by`: which part of `field` has the name.
        """
        self._field = field
        self.where = f"{field}.{named_by}: {name}"
        """Field and function, the beginning of sentences."""
        self._runner = runner
        self._timeout_seconds = timeout_seconds
        self.per_sample = per_sample
        self._clock = clock
        self._metrics = MetricNames(self.where)

    @classmethod
    def from_spec(
        cls, spec: RewardFunctionSpec, field: str = _FIELD, part: str | None = None, label_key: str | None = None
    ) -> CustomReward:
        """Loads the function of `field`; ValueError where that does not work.

        `part`: which reward of a sum it is; `label_key`: the column of labels.
        """
        function = load_function(spec, field)
        if takes_keywords(function):
            function = of_answers(function, label_key)
        elif spec.per_sample:
            function = _of_groups_of_one(cast("SampleReward", function))
        runner = _runner_of(cast("RewardFunction", function))
        name = spec.function if part is None else f"{spec.function} ({part})"
        return cls(name, runner, spec.timeout_seconds, field=field, per_sample=spec.per_sample)

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[Outcome]]:
        """Scores all groups (or answers) side by side; one that another try would not help ends all of this call."""
        if not self.per_sample:
            return self._scored(groups)
        outcomes = iter(self._scored([[answer] for group in groups for answer in group]))
        return [[next(outcomes)[0] for _ in group] for group in groups]

    def _scored(self, groups: Sequence[Sequence[Answer]]) -> list[list[Outcome]]:
        calls = [self._runner.start(group) for group in groups]
        try:
            return [self._outcomes(call) for call in calls]
        except BaseException:
            self._runner.drop(calls)
            raise

    def close(self) -> None:
        """Ends threads or loop."""
        self._runner.close()

    def _outcomes(self, call: Call) -> list[Outcome]:
        try:
            result = self._result(call)
        except (RewardFailed, RewardTimeout) as error:
            return [error] * len(call.group)
        return self._checked(call.group, result)

    def _result(self, call: Call) -> Any:  # noqa: ANN401 - users return anything
        while not call.future.done() and (left := self._left(call)) > 0:
            try:
                call.future.exception(timeout=left)
            except TimeoutError:
                continue
        if not call.future.done():
            self._give_up(call)
        error = call.future.exception()
        if error is not None:
            # A subclass of it is mostly a text that could not be read, and so a matter of this answer alone.
            is_final = type(error) is ValueError or isinstance(error, RewardRefused)
            kind = RewardRefused if is_final else RewardFailed
            raise kind(
                f"{self.where} raised {type(error).__name__} on {_prompt(call.group)}{user_place(error)}:"
                f" {with_cure(error)}"
            ) from error
        return call.future.result()

    def _give_up(self, call: Call) -> NoReturn:
        self._runner.drop([call])
        self._runner.renew()
        late = f"{self.where} has not scored {_prompt(call.group)} within {self._timeout_seconds:g} s."
        if self._runner.num_hanging > MAX_HANGING:
            raise RewardRefused(
                f"{late} More than {MAX_HANGING} of its calls hang, and each keeps a thread. Give what it waits for a"
                " time limit of its own."
            )
        raise RewardTimeout(f"{late} Make it faster or raise {self._field}.timeoutSeconds.")

    def _left(self, call: Call) -> float:
        """Seconds; the limit counts from when the call began, not while it waits its turn behind others."""
        if call.began is None:
            return self._timeout_seconds
        return call.began + self._timeout_seconds - self._clock()

    def _checked(self, group: Sequence[Answer], result: Any) -> list[Outcome]:  # noqa: ANN401 - users return anything
        scores = _listed(result)
        if scores is None or len(scores) != len(group):
            got = repr(result)[:80] if scores is None else f"{len(scores)} values"
            raise RewardRefused(
                f"{self.where} returned {got} for the {len(group)} answers to {_prompt(group)}."
                " Return one float per answer, in order."
            )
        return [self._outcome(group, answer, score) for answer, score in zip(group, scores, strict=True)]

    def _outcome(self, group: Sequence[Answer], answer: Answer, score: object) -> Outcome:
        if isinstance(score, RewardMissing):  # one of ours, with a sentence of its own
            return score
        if score is None:
            return RewardMissing(f"{self.where} has no score for answer {answer.index} to {_prompt(group)}.")
        number = as_number(score.reward if isinstance(score, Score) else score)
        if number is None or not is_reward(number):
            sentence = (
                f"{self.where} returned {score!r:.200} for answer {answer.index} to {_prompt(group)}."
                " A reward is a finite float, or None where there is none."
            )
            if number is None:
                raise RewardRefused(sentence)
            return RewardFailed(sentence)
        if not isinstance(score, Score):
            return number
        try:
            metrics = checked_metrics(self.where, score.metrics)
        except RewardFailed as error:
            return error
        self._metrics.add(metrics)
        return Score(number, metrics)


def _of_groups_of_one(function: SampleReward) -> RewardFunction:
    """A function of one answer as one of groups that have one."""
    if is_async(function):

        async def score_later(answers: Sequence[Answer], /) -> list[Given]:
            return [await cast("Awaitable[Given]", function(answers[0]))]

        return score_later

    def score(answers: Sequence[Answer], /) -> list[Given]:
        return [cast("Given", function(answers[0]))]

    return score


def _runner_of(function: RewardFunction) -> Runner:
    if is_async(function):
        return LoopRunner(cast("Callable[[Sequence[Answer]], Awaitable[Any]]", function))
    return ThreadRunner(function)


def _listed(result: Any) -> list[object] | None:  # noqa: ANN401 - users return anything
    """None for what has no order or no elements: a text, a dict, a set, a number, a coroutine."""
    if isinstance(result, str | bytes | dict | set | frozenset):
        return None
    try:
        return list(result)
    except TypeError:
        return None


def _prompt(group: Sequence[Answer]) -> str:
    return f"{named_prompt(group[0].prompt)} (group {group[0].group})"
