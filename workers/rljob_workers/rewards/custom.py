"""A user's reward function: called for groups side by side with a time limit, its results checked.

Threads and event loops are `runners`; here are what a function's results must be and the sentences for its user.
"""

from __future__ import annotations

import inspect
import math
import time
from typing import TYPE_CHECKING, Any, NoReturn, SupportsFloat, cast

from rljob_workers.rewards.base import (
    Answer,
    Reward,
    RewardError,
    RewardFailed,
    RewardFunction,
    RewardMissing,
    RewardRefused,
    RewardTimeout,
)
from rljob_workers.rewards.runners import Call, Clock, LoopRunner, Runner, ThreadRunner
from rljob_workers.user_functions import Signature, load, user_place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rljob_api.spec.rollout import RewardFunctionSpec


_FIELD = "rollout.reward.custom"


def load_function(spec: RewardFunctionSpec) -> RewardFunction:
    """The function that `spec` names. Raises ValueError with a sentence, as `user_functions.load` does."""
    wanted = Signature(1, "the answers of one group", "def reward(answers): return [...]")
    # A name in a user's module has no type.
    return load(f"{_FIELD}.function", spec.function, f"{_FIELD}.path", spec.path, wanted)  # type: ignore[no-any-return]


MAX_HANGING = 1000
"""Calls that were given up and have not returned. A plain function that hangs cannot be ended, so that its thread
stays: a job that leaves more of them behind would end by the limits of its machine, without a name."""


class CustomReward(Reward):
    """Calls a user's function; the messages name function and prompt."""

    def __init__(self, name: str, runner: Runner, timeout_seconds: float, *, clock: Clock = time.monotonic) -> None:
        self._name = name
        self._runner = runner
        self._timeout_seconds = timeout_seconds
        self._clock = clock

    @classmethod
    def from_spec(cls, spec: RewardFunctionSpec) -> CustomReward:
        """Loads the function; ValueError where that does not work."""
        return cls(spec.function, _runner_of(load_function(spec)), spec.timeout_seconds)

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[float | RewardError]]:
        """Scores all groups side by side; one that another try would not help ends all of this call."""
        calls = [self._runner.start(group) for group in groups]
        try:
            return [self._outcomes(call) for call in calls]
        except BaseException:
            self._runner.drop(calls)
            raise

    def close(self) -> None:
        """Ends threads or loop."""
        self._runner.close()

    def _outcomes(self, call: Call) -> list[float | RewardError]:
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
            kind = RewardRefused if type(error) is ValueError else RewardFailed
            raise kind(
                f"{_FIELD}.function: {self._name} raised {type(error).__name__} on {_prompt(call.group)}"
                f"{user_place(error)}: {error}"
            ) from error
        return call.future.result()

    def _give_up(self, call: Call) -> NoReturn:
        self._runner.drop([call])
        self._runner.renew()
        late = (
            f"{_FIELD}.function: {self._name} has not scored {_prompt(call.group)} within {self._timeout_seconds:g} s."
        )
        if self._runner.num_hanging > MAX_HANGING:
            raise RewardRefused(
                f"{late} More than {MAX_HANGING} of its calls hang, and each keeps a thread. Give what it waits for a"
                " time limit of its own."
            )
        raise RewardTimeout(f"{late} Make it faster or raise {_FIELD}.timeoutSeconds.")

    def _left(self, call: Call) -> float:
        """Seconds; the limit counts from when the call began, not while it waits its turn behind others."""
        if call.began is None:
            return self._timeout_seconds
        return call.began + self._timeout_seconds - self._clock()

    def _checked(self, group: Sequence[Answer], result: Any) -> list[float | RewardError]:  # noqa: ANN401 - users return anything
        scores = _listed(result)
        if scores is None or len(scores) != len(group):
            got = repr(result)[:80] if scores is None else f"{len(scores)} values"
            raise RewardRefused(
                f"{_FIELD}.function: {self._name} returned {got} for the {len(group)} answers to {_prompt(group)}."
                " Return one float per answer, in order."
            )
        return [self._number(group, position, score) for position, score in enumerate(scores)]

    def _number(self, group: Sequence[Answer], position: int, score: object) -> float | RewardError:
        if score is None:
            return RewardMissing(
                f"{_FIELD}.function: {self._name} has no score for answer {position} to {_prompt(group)}."
            )
        number = _float(score)
        if not math.isfinite(number):
            raise RewardRefused(
                f"{_FIELD}.function: {self._name} returned {score!r} for answer {position} to {_prompt(group)}."
                " A reward is a finite float, or None where there is none."
            )
        return number


def _runner_of(function: RewardFunction) -> Runner:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004 - an object whose call is async
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


def _float(score: object) -> float:
    """NaN for what is no number; numbers written as text are none."""
    if isinstance(score, str | bytes):
        return math.nan
    try:
        return float(cast("SupportsFloat", score))
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _prompt(group: Sequence[Answer]) -> str:
    text = group[0].prompt
    return f"the prompt {text if len(text) <= 80 else text[:77] + '...'!r} (group {group[0].group})"
