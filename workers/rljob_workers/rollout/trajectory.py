"""What a rollout makes of a prompt: one conversation as a row of tokens, and the builder that puts it together.

Written by rollout functions, users' included, and read by the stage that makes rows. The model's tokens have log-probs
and the version that drew them; a tool's have neither, are masked, and lie in the gaps between spans.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import FinishReason, Sample, VersionSpan
from rljob_workers.rewards.metrics import as_number, is_reward


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One sample: a prompt and its response, in which tools may have written."""

    token_ids: Sequence[int]
    """[n], prompt and response."""
    prompt_length: int
    loss_mask: Sequence[int]
    """[n - prompt_length]; 1: the model drew the token."""
    log_probs: Sequence[float]
    """The engine's, of the drawn tokens alone, in their order."""
    version_spans: Sequence[VersionSpan]
    """Which weights drew them: positions in the response, in order, over drawn tokens only."""
    finish: FinishReason
    reward: float | None = None
    """What the function itself finds the sample worth; None: the job's reward scores it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Figures by name; the step's report has their means."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Arrays by name, which travel with the row."""

    @classmethod
    def of_sample(cls, prompt_ids: Sequence[int], sample: Sample) -> Trajectory:
        """A single turn."""
        return cls(
            [*prompt_ids, *sample.output_ids],
            len(prompt_ids),
            [1] * len(sample.output_ids),
            sample.log_probs,
            sample.spans,
            sample.finish_reason,
        )

    @property
    def response_ids(self) -> Sequence[int]:
        """Tokens after the prompt."""
        return self.token_ids[self.prompt_length :]

    @property
    def oldest(self) -> WeightId:
        """The oldest weights that drew any of its tokens."""
        if len(self.version_spans) == 1:
            return self.version_spans[0].weight
        return min((span.weight for span in self.version_spans), key=place_of)

    @property
    def newest(self) -> WeightId:
        """The newest."""
        if len(self.version_spans) == 1:
            return self.version_spans[0].weight
        return max((span.weight for span in self.version_spans), key=place_of)

    def response_log_probs(self) -> Sequence[float]:
        """[n - prompt_length]; 0 where a tool wrote."""
        if len(self.log_probs) == len(self.loss_mask):
            return self.log_probs
        drawn = iter(self.log_probs)
        return [next(drawn) if is_drawn else 0.0 for is_drawn in self.loss_mask]


@dataclass(frozen=True, slots=True)
class LostSample:
    """A sample that its rollout function could not make: it stays a row, masked throughout, and is not valid."""

    reason: str
    """In a sentence."""


def place_of(weight: WeightId) -> tuple[int, int]:
    """In the order in which weights come."""
    return weight.lineage, weight.version


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """How long a conversation may be."""

    max_new_tokens: int
    """Of the response, a tool's tokens included (rollout.sampling.maxNewTokens)."""
    max_tokens: int
    """Positions of the model: prompt and response."""
    vocab_size: int
    """Tokens that the model knows."""

    def room(self, prompt_length: int, length: int) -> int:
        """Tokens that may follow the first `length`, of which the prompt has `prompt_length`."""
        return max(0, min(prompt_length + self.max_new_tokens, self.max_tokens) - length)

    def unknown(self, token_ids: Iterable[object]) -> list[object]:
        """Those that are no tokens of the model."""
        return [token for token in token_ids if not (_is_whole(token) and 0 <= token < self.vocab_size)]  # type: ignore[operator]  # a user's value


def refuse_impossible(trajectory: Trajectory, function: str, limits: TokenLimits) -> None:
    """ValueError with a sentence where it cannot be what a model and its tools wrote; `function` returned it."""
    try:
        wrong = _wrong_field(trajectory, limits)
    except (TypeError, AttributeError) as error:  # users put anything into a field
        raise ValueError(
            f"rollout.function: {function} returned a Trajectory with a field of another type than it states ({error})."
        ) from error
    if wrong is not None:
        name, sentence = wrong
        raise ValueError(f"rollout.function: {function} returned a Trajectory whose {name} {sentence}")


def _wrong_field(made: Trajectory, limits: TokenLimits) -> tuple[str, str] | None:
    """Field and what is wrong with it."""
    num_tokens, response = len(made.token_ids), len(made.token_ids) - made.prompt_length
    drawn = sum(1 for value in made.loss_mask if value)
    unknown = limits.unknown(made.token_ids)
    checks: tuple[tuple[bool, str, str], ...] = (
        (
            not unknown,
            "token_ids",
            f"has {', '.join(map(repr, unknown[:1]))}, and the model knows tokens 0 to {limits.vocab_size - 1}.",
        ),
        (
            0 < made.prompt_length < num_tokens,
            "prompt_length",
            f"is {made.prompt_length}, of {num_tokens} tokens: a row has a prompt, and a response after it.",
        ),
        (
            num_tokens <= limits.max_tokens,
            "token_ids",
            f"has {num_tokens} tokens, and the model has {limits.max_tokens} positions. End it sooner, or let"
            " `engine.begin` cut it.",
        ),
        (
            response <= limits.max_new_tokens,
            "token_ids",
            f"has {response} tokens after the prompt, a tool's included, and rollout.sampling.maxNewTokens allows"
            f" {limits.max_new_tokens}. Raise it, or let `engine.begin` cut it.",
        ),
        (
            len(made.loss_mask) == response,
            "loss_mask",
            f"has {len(made.loss_mask)} elements for {response} tokens after the prompt. Give one for each.",
        ),
        (
            all(value in (0, 1) for value in made.loss_mask),
            "loss_mask",
            "has something other than 0 (a tool's token) and 1 (a token of the model's).",
        ),
        (drawn > 0, "loss_mask", "has no 1: the model drew nothing, so that nothing can be learnt."),
        (
            len(made.log_probs) == drawn,
            "log_probs",
            f"has {len(made.log_probs)} elements for {drawn} tokens that the model drew. Give theirs, and no others.",
        ),
        (
            all(_is_finite(value) for value in made.log_probs),
            "log_probs",
            "has something other than finite numbers.",
        ),
        (
            _covered(made.version_spans) == [place for place, value in enumerate(made.loss_mask) if value],
            "version_spans",
            "does not cover the drawn tokens, each once and in order: `Turn.spans`, moved to their places in the"
            " response, do.",
        ),
        (isinstance(made.finish, FinishReason), "finish", f"is {made.finish!r}. Give a FinishReason."),
        (made.finish is not FinishReason.ABORT, "finish", "is `abort`: what was aborted is no sample."),
        (made.reward is None or as_number(made.reward) is not None, "reward", _NO_REWARD.format(made.reward)),
        (
            all(isinstance(name, str) and as_number(value) is not None for name, value in made.metrics.items()),
            "metrics",
            "has something other than finite numbers by name.",
        ),
    )
    # In order: a later check may ask what an earlier one has made sure of.
    return next(((name, sentence) for holds, name, sentence in checks if not holds), None)


_NO_REWARD = "is {!r}. Give a finite number, or None where the job's reward scores it."


def not_finite(trajectory: Trajectory, function: str) -> str | None:
    """A sentence where reward or a metric, which are numbers, is NaN or infinite: so it may be of this sample alone."""
    reward = None if trajectory.reward is None else as_number(trajectory.reward)
    if reward is not None and not is_reward(reward):
        return f"rollout.function: {function} returned a Trajectory whose reward {_NO_REWARD.format(trajectory.reward)}"
    for name, value in trajectory.metrics.items():
        number = as_number(value)
        if number is not None and not math.isfinite(number):
            return (
                f"rollout.function: {function} returned a Trajectory whose metric {name} is {value!r}. Give a finite"
                " number, or leave it out."
            )
    return None


def _covered(spans: Iterable[VersionSpan]) -> list[int]:
    return [place for span in spans for place in range(span.start, span.end)]


def _is_whole(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    try:
        return math.isfinite(value)  # type: ignore[arg-type]  # a user's value
    except TypeError:
        return False


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model drew in one call of the engine."""

    token_ids: Sequence[int]
    log_probs: Sequence[float]
    spans: Sequence[VersionSpan]
    """Positions in `token_ids`, without gaps."""
    finish_reason: FinishReason
    """LENGTH, with no token, too, where the conversation has no room for one."""


class TrajectoryBuilder:
    """Puts a trajectory together, and cuts what there is no room for.

    conversation = engine.begin(prompt.token_ids)
    turn = await engine.generate(conversation.token_ids)
    conversation.add_turn(turn)
    await engine.add_text(conversation, "the tool's answer")
    return conversation.finish()
    """

    def __init__(self, prompt_ids: Sequence[int], limits: TokenLimits) -> None:
        """`prompt_ids` need not be the data's: a function may put its tools into the prompt."""
        self.token_ids: list[int] = list(prompt_ids)
        """All until now: what the next turn goes on from."""
        self._prompt_length = len(self.token_ids)
        self._limits = limits
        self._loss_mask: list[int] = []
        self._log_probs: list[float] = []
        self._spans: list[VersionSpan] = []
        self._finish = FinishReason.STOP
        self.num_cut = 0
        """Tokens of tools that there was no room for."""

    @property
    def room(self) -> int:
        """Tokens that may still follow."""
        return self._limits.room(self._prompt_length, len(self.token_ids))

    @property
    def is_full(self) -> bool:
        """Whether nothing may follow, or something was cut."""
        return self._finish is FinishReason.LENGTH or not self.room

    def add_turn(self, turn: Turn) -> None:
        """What the model drew, right behind what is there."""
        offset, room = len(self._loss_mask), self.room
        tokens = list(turn.token_ids[:room])
        self.token_ids += tokens
        self._loss_mask += [1] * len(tokens)
        self._log_probs += turn.log_probs[:room]
        self._spans += [
            VersionSpan(span.weight, offset + span.start, offset + min(span.end, room))
            for span in turn.spans
            if span.start < room
        ]
        self._finish = turn.finish_reason if len(tokens) == len(turn.token_ids) else FinishReason.LENGTH

    def add_tokens(self, token_ids: Sequence[int]) -> bool:
        """Tokens that a tool wrote; False where they had to be cut, after which no turn can follow."""
        room = self.room
        tokens = list(token_ids[:room])
        self.token_ids += tokens
        self._loss_mask += [0] * len(tokens)
        self.num_cut += len(token_ids) - len(tokens)
        if len(tokens) < len(token_ids):
            self._finish = FinishReason.LENGTH
            return False
        return True

    def finish(
        self,
        finish: FinishReason | None = None,
        *,
        reward: float | None = None,
        metrics: Mapping[str, float] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Trajectory:
        """The whole. `finish` None: as the last turn ended, LENGTH where something was cut."""
        return Trajectory(
            list(self.token_ids),
            self._prompt_length,
            list(self._loss_mask),
            list(self._log_probs),
            _joined(self._spans),
            self._finish if finish is None else finish,
            reward,
            metrics or {},
            extra or {},
        )


def _joined(spans: Iterable[VersionSpan]) -> tuple[VersionSpan, ...]:
    """Neighbours of one version as one: two turns with nothing in between."""
    joined: list[VersionSpan] = []
    for span in spans:
        if joined and joined[-1].weight == span.weight and joined[-1].end == span.start:
            joined[-1] = VersionSpan(span.weight, joined[-1].start, span.end)
        elif span.end > span.start:
            joined.append(span)
    return tuple(joined)
