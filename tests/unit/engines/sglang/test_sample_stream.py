"""From a stream's events to a sample."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_workers.engines.base import EngineGone, EngineRefused, FinishReason, VersionSpan
from rljob_workers.engines.sglang.sglang_client import SampleBuilder
from tests.weights import weight


def event(tokens: list[int], reason: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    """As a server reports them: each token's log-prob is its negative."""
    log_probs = [[-float(token), token, None] for token in tokens]
    return {"output_ids": tokens, "meta_info": {"finish_reason": reason, "output_token_logprobs": log_probs, **meta}}


def span(version: str, start: int, end: int) -> dict[str, Any]:
    return {"version": version, "start": start, "end": end}


LENGTH = {"type": "length", "length": 3}


def test_events_that_carry_what_is_new_are_put_together() -> None:
    building = SampleBuilder(incremental=True)
    assert building.add(event([1])) == 1
    assert building.add(event([2, 3], LENGTH, weight_versions=[span("1:4", 0, 2), span("1:5", 2, 3)])) == 2
    sample = building.sample()
    assert (sample.output_ids, sample.log_probs) == ([1, 2, 3], [-1.0, -2.0, -3.0])
    assert sample.finish_reason is FinishReason.LENGTH
    assert sample.spans == (VersionSpan(weight(4), 0, 2), VersionSpan(weight(5), 2, 3))


def test_events_that_carry_all_replace_each_other() -> None:
    building = SampleBuilder(incremental=False)
    assert building.add(event([1])) == 1
    assert building.add(event([1, 2, 3], LENGTH, weight_versions=[span("1:4", 0, 3)])) == 2
    assert building.sample().output_ids == [1, 2, 3]


def test_a_name_that_no_token_was_made_under_is_no_span() -> None:
    building = SampleBuilder(incremental=True)
    building.add(event([1, 2], LENGTH, weight_versions=[span("1:4", 0, 1), span("none", 1, 1), span("1:5", 1, 2)]))
    assert [one.weight for one in building.sample().spans] == [weight(4), weight(5)]


def test_an_abort_before_the_first_token_is_a_sample_of_none() -> None:
    building = SampleBuilder(incremental=True)
    building.add({"meta_info": {"finish_reason": {"type": "abort", "message": "Abort in waiting queue"}}})
    sample = building.sample()
    assert (sample.output_ids, sample.finish_reason, sample.spans) == ([], FinishReason.ABORT, ())


@pytest.mark.parametrize(
    ("last", "error", "sentence"),
    [
        pytest.param(event([1]), EngineGone, "without a reason", id="the stream broke off"),
        pytest.param(
            event([], {"type": "abort", "status_code": 400, "message": "too long"}),
            EngineRefused,
            "too long",
            id="refused by the scheduler",
        ),
        pytest.param(
            event([1], LENGTH, weight_versions=[span("default", 0, 1)]), EngineRefused, "'default'", id="no name"
        ),
        pytest.param(event([1], LENGTH), EngineRefused, "does not say which weights", id="no spans"),
        pytest.param(
            event([1, 2], LENGTH, weight_versions=[span("1:4", 1, 2)]), EngineRefused, "does not say", id="a gap"
        ),
    ],
)
def test_what_does_not_count_is_named(last: dict[str, Any], error: type[Exception], sentence: str) -> None:
    building = SampleBuilder(incremental=True)
    building.add(last)
    with pytest.raises(error, match=sentence):
        building.sample()
