"""How much a rollout rank takes at a time: its share of what may be open, and always enough for its engine."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.rollout import RolloutSpec
from rljob_workers.rollout.admission import (
    MAX_REQUESTS,
    TOKENS_PER_REQUEST,
    AdmissionLimits,
    RolloutShape,
    limits_of,
    prompts_per_request,
    tickets_to_claim,
)

SHAPE = RolloutShape(batch_size=64, samples_per_ticket=8, max_new_tokens=8, capacity=64, most_ranks=1, concurrency=4096)


@pytest.mark.parametrize(
    ("changes", "num_ranks", "in_flight", "in_work"),
    [
        pytest.param({}, 1, 512, 128, id="a rollout, where the engine could do more"),
        pytest.param({"concurrency": 100}, 1, 100, 128, id="what the engine does at once, where a rollout is more"),
        pytest.param({"capacity": 192}, 1, 1536, 384, id="every rollout that may be open"),
        pytest.param({}, 3, 176, 44, id="ranks share them, rounded up"),
        pytest.param({"batch_size": 2, "capacity": 2}, 4, 8, 2, id="more ranks than groups"),
        pytest.param({"batch_size": 2, "capacity": 4}, 4, 8, 2, id="and than open groups"),
    ],
)
def test_a_rank_has_its_share_of_the_open_rollouts(
    changes: dict[str, int], num_ranks: int, in_flight: int, in_work: int
) -> None:
    limits = limits_of(replace(SHAPE, **changes), num_ranks)
    assert (limits.samples_in_flight, limits.tickets_in_work) == (in_flight, in_work)


@pytest.mark.parametrize(
    ("changes", "prompts_per_request", "expected"),
    [
        pytest.param({}, None, 32, id="short samples go out in two halves, so that one scores while one runs"),
        pytest.param({"max_new_tokens": 128}, None, 4, id="long samples in small requests"),
        pytest.param({"max_new_tokens": 8192, "batch_size": 16}, None, 1, id="a group longer than a request alone"),
        pytest.param({"max_new_tokens": 8192, "batch_size": 256}, None, 8, id="no more requests than are useful"),
        pytest.param({}, 1, 1, id="each prompt alone where the engine wants it so"),
    ],
)
def test_requests_are_as_large_as_they_end_soon(
    changes: dict[str, int], prompts_per_request: int | None, expected: int
) -> None:
    shape = replace(SHAPE, **changes, prompts_per_request=prompts_per_request)
    assert limits_of(shape).tickets_per_request == expected


@pytest.mark.parametrize(
    ("fields", "engine_takes", "expected"),
    [
        pytest.param({}, None, None, id="as many as are useful"),
        pytest.param({}, 1, 1, id="as the engine takes them"),
        pytest.param({"order": "Swap"}, None, 1, id="groups are put in the order in which they finish"),
        pytest.param({"partial": {}}, None, 1, id="groups are carried on"),
    ],
)
def test_no_group_waits_for_another_of_its_request_where_they_finish_in_any_order(
    fields: dict[str, object], engine_takes: int | None, expected: int | None
) -> None:
    given = {"numRollouts": 1, "batchSize": 64, "samplesPerPrompt": 8, "reward": {"exactMatch": {}}, **fields}
    rollout = RolloutSpec.model_validate(given)
    assert prompts_per_request(rollout, engine_takes) == expected
    long = replace(SHAPE, max_new_tokens=1024, prompts_per_request=expected)
    assert limits_of(long).tickets_per_request == (expected or 2)


SHAPES = st.builds(
    RolloutShape,
    batch_size=st.integers(1, 4096),
    samples_per_ticket=st.integers(2, 65),
    max_new_tokens=st.integers(1, 65536),
    capacity=st.integers(1, 32768),
    most_ranks=st.integers(1, 64),
    concurrency=st.integers(1, 4096),
)


@given(SHAPES)
def test_all_ranks_together_can_work_on_every_open_rollout(shape: RolloutShape) -> None:
    limits = limits_of(shape)
    num_ranks = shape.most_ranks
    assert limits.tickets_in_work * num_ranks >= shape.capacity
    if shape.concurrency >= limits.samples_in_flight + 1:
        assert limits.samples_in_flight * num_ranks >= shape.capacity * shape.samples_per_ticket
    share = ceil(shape.batch_size / num_ranks)
    assert 1 <= limits.tickets_per_request <= share
    assert ceil(share / limits.tickets_per_request) <= MAX_REQUESTS
    fits = limits.tickets_per_request * shape.samples_per_ticket * shape.max_new_tokens <= TOKENS_PER_REQUEST
    assert fits or limits.tickets_per_request == max(1, ceil(share / MAX_REQUESTS))


LIMITS = AdmissionLimits(samples_in_flight=64, tickets_in_work=20, samples_per_ticket=8, tickets_per_request=1)


@pytest.mark.parametrize(
    ("in_flight", "in_work", "expected"),
    [
        pytest.param(0, 0, 8, id="an idle engine gets all that it does at once"),
        pytest.param(63, 8, 1, id="a place that one sample left is filled, by a whole group"),
        pytest.param(64, 8, 0, id="a full engine gets nothing"),
        pytest.param(70, 9, 0, id="nor one that has a group's rest too much"),
        pytest.param(0, 12, 8, id="groups that wait for their scores hold no place"),
        pytest.param(0, 18, 2, id="up to as many as may wait"),
        pytest.param(0, 25, 0, id="and no more"),
    ],
)
def test_tickets_are_claimed_while_the_engine_has_room(in_flight: int, in_work: int, expected: int) -> None:
    assert tickets_to_claim(LIMITS, in_flight, in_work) == expected


@given(SHAPES, st.integers(1, 512), st.data())
def test_the_engine_is_full_whenever_tickets_may_be_had(
    shape: RolloutShape, concurrency: int, data: st.DataObject
) -> None:
    """Whatever ends when: after a claim that got what it asked for the engine lacks nothing, and has not too much."""
    limits = limits_of(replace(shape, concurrency=concurrency, prompts_per_request=1))
    generating: list[int] = []  # samples that each group still has in flight
    scoring = 0
    for _ in range(data.draw(st.integers(1, 30))):
        claimed = tickets_to_claim(limits, sum(generating), len(generating) + scoring)
        generating += [shape.samples_per_ticket] * claimed
        assert len(generating) + scoring <= limits.tickets_in_work
        assert sum(generating) < limits.samples_in_flight + shape.samples_per_ticket
        is_full = sum(generating) >= limits.samples_in_flight
        assert is_full or len(generating) + scoring == limits.tickets_in_work
        ending = data.draw(st.lists(st.integers(0, len(generating) - 1), max_size=8)) if generating else []
        for index in ending:
            generating[index] = max(0, generating[index] - data.draw(st.integers(1, shape.samples_per_ticket)))
        scoring += generating.count(0)
        generating = [left for left in generating if left]
        scoring -= data.draw(st.integers(0, scoring))
