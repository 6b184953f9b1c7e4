"""A trajectory: what cannot be is refused by name, and a builder puts turns and a tool's tokens where they belong."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.engines.base import FinishReason, VersionSpan
from rljob_workers.rollout.trajectory import (
    TokenLimits,
    Trajectory,
    TrajectoryBuilder,
    Turn,
    not_finite,
    refuse_impossible,
)
from tests.weights import weight

LIMITS = TokenLimits(max_new_tokens=6, max_tokens=9, vocab_size=100)


def make_trajectory(**changes: Any) -> Trajectory:
    """Two prompt tokens, two of version 2, two of a tool, one of version 3."""
    spans = (VersionSpan(weight(2), 0, 2), VersionSpan(weight(3), 4, 5))
    made = Trajectory([4, 4, 40, 41, 50, 51, 42], 2, [1, 1, 0, 0, 1], [-1.0, -2.0, -3.0], spans, FinishReason.STOP)
    return replace(made, **changes)


def span(start: int, end: int) -> VersionSpan:
    return VersionSpan(weight(2), start, end)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"token_ids": [4, 4, 40, 41, 50, 51, 100]}, "token_ids has 100, and the model knows tokens 0 to 99."),
        ({"token_ids": [4, 4, 40, 41, 50, 51, -1]}, "token_ids has -1, and"),
        ({"token_ids": [4, 4, 40, 41, 50, 51, 1.5]}, r"token_ids has 1\.5, and"),
        ({"prompt_length": 0}, "prompt_length is 0, of 7 tokens"),
        ({"prompt_length": 7}, "prompt_length is 7, of 7 tokens"),
        ({"token_ids": [1] * 10, "prompt_length": 5}, "token_ids has 10 tokens, and the model has 9 positions"),
        ({"token_ids": [1] * 9}, "token_ids has 7 tokens after the prompt.*maxNewTokens allows 6"),
        ({"loss_mask": [1, 1, 0, 0]}, "loss_mask has 4 elements for 5 tokens after the prompt"),
        ({"loss_mask": [1, 1, 0, 0, 2]}, "loss_mask has something other than 0"),
        ({"loss_mask": [0] * 5, "log_probs": [], "version_spans": ()}, "loss_mask has no 1: the model drew nothing"),
        ({"log_probs": [-1.0] * 5}, "log_probs has 5 elements for 3 tokens that the model drew"),
        ({"log_probs": [-1.0, -1.0, float("nan")]}, "log_probs has something other than finite numbers"),
        ({"version_spans": (span(0, 5),)}, "version_spans does not cover the drawn tokens"),
        ({"version_spans": (span(0, 2),)}, "version_spans does not cover"),
        ({"version_spans": (span(4, 5), span(0, 2))}, "version_spans does not cover"),
        ({"version_spans": (span(0, 2), span(1, 2), span(4, 5))}, "version_spans does not cover"),
        ({"finish": "stop it"}, "finish is 'stop it'"),
        ({"finish": FinishReason.ABORT}, "finish is `abort`"),
        ({"reward": "much"}, "reward is 'much'"),
        ({"metrics": {"calls": None}}, "metrics has something other than finite numbers"),
        ({"version_spans": None}, "a field of another type than it states"),
        ({"token_ids": 7}, "a field of another type than it states"),
    ],
)
def test_what_cannot_be_is_refused_with_function_and_field(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"rollout.function: tools:play returned a Trajectory w.*{sentence}"):
        refuse_impossible(make_trajectory(**changes), "tools:play", LIMITS)


def test_what_can_be_is_not_refused() -> None:
    refuse_impossible(make_trajectory(), "tools:play", LIMITS)
    assert not_finite(make_trajectory(reward=1, metrics={"calls": 2}), "tools:play") is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"reward": float("inf")}, "reward is inf. Give a finite number"),
        ({"reward": float("nan")}, "reward is nan."),
        ({"reward": 1e39}, r"reward is 1e\+39."),
        ({"reward": 10**400}, "reward is 1000"),
        ({"metrics": {"calls": float("nan")}}, "metric calls is nan. Give a finite number, or leave it out."),
    ],
)
def test_what_is_not_finite_may_be_of_one_sample_alone(changes: dict[str, Any], sentence: str) -> None:
    made = make_trajectory(**changes)
    refuse_impossible(made, "tools:play", LIMITS)
    found = not_finite(made, "tools:play")
    assert found is not None
    assert re.match(f"rollout.function: tools:play returned a Trajectory whose {sentence}", found)


def test_a_tools_tokens_have_the_log_prob_zero() -> None:
    assert make_trajectory().response_log_probs() == [-1.0, -2.0, 0.0, 0.0, -3.0]


def turn(tokens: list[int], version: int = 2, finish: FinishReason = FinishReason.STOP) -> Turn:
    spans = (VersionSpan(weight(version), 0, len(tokens)),) if tokens else ()
    return Turn(tokens, [-float(token) for token in tokens], spans, finish)


def test_spans_of_a_turn_move_to_their_places_in_the_response() -> None:
    conversation = TrajectoryBuilder([4, 4], LIMITS)
    conversation.add_turn(turn([1, 2]))
    assert conversation.add_tokens([50, 51])
    conversation.add_turn(turn([3], version=3))
    made = conversation.finish(reward=1.0)
    assert made == make_trajectory(token_ids=[4, 4, 1, 2, 50, 51, 3], reward=1.0, log_probs=[-1.0, -2.0, -3.0])
    assert (made.oldest, made.newest) == (weight(2), weight(3))


def test_two_turns_of_one_version_with_nothing_between_are_one_span() -> None:
    conversation = TrajectoryBuilder([4], LIMITS)
    conversation.add_turn(turn([1, 2]))
    conversation.add_turn(turn([3]))
    assert conversation.finish().version_spans == (span(0, 3),)


def test_what_has_no_room_is_cut_and_called_cut_off() -> None:
    conversation = TrajectoryBuilder([4], LIMITS)
    conversation.add_turn(turn([1, 2, 3, 4]))
    assert not conversation.add_tokens([50, 51, 52])
    assert (conversation.room, conversation.is_full, conversation.finish().finish) == (0, True, FinishReason.LENGTH)
    assert conversation.token_ids == [4, 1, 2, 3, 4, 50, 51]


_PARTS = st.lists(
    st.one_of(
        st.builds(lambda length, version: turn([7] * length, version), st.integers(0, 4), st.integers(0, 3)),
        st.lists(st.integers(0, 99), max_size=4),
    ),
    max_size=8,
)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4), _PARTS)
def test_whatever_is_added_a_trajectory_that_drew_something_is_possible(prompt: list[int], parts: list[Any]) -> None:
    conversation = TrajectoryBuilder(prompt, LIMITS)
    for part in parts:
        if isinstance(part, Turn):
            conversation.add_turn(part)
        else:
            conversation.add_tokens(part)
    made = conversation.finish()
    if any(made.loss_mask):
        refuse_impossible(made, "tools:play", LIMITS)
        assert len(made.response_log_probs()) == len(made.response_ids)
