"""A partial's bytes give back what was packed, or nothing; samples are cut and joined without a gap."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.engines.base import FinishReason, SamplingParams, VersionSpan
from rljob_workers.rollout.carried import CarriedSample, pack_group, sampling_digest, unpack_group
from tests.weights import weight

PARAMS = SamplingParams(0.5, 0.9, 4, 6, (1,), num_samples=2, seed=3)
ENDS = st.sampled_from([None, FinishReason.STOP, FinishReason.LENGTH])
FLOATS = st.floats(-50, 0, width=32)


@st.composite
def samples(draw: st.DrawFn) -> CarriedSample:
    """One with as many spans as it happens to have; a float32 log-prob of each token."""
    tokens = draw(st.lists(st.tuples(st.integers(0, 2**31 - 1), FLOATS), max_size=9))
    edges = sorted(draw(st.sets(st.integers(1, max(1, len(tokens) - 1)), max_size=2)) - {len(tokens)})
    edges = [0, *edges, len(tokens)] if len(tokens) > 1 else [0, len(tokens)]
    spans = tuple(
        VersionSpan(weight(draw(st.integers(0, 9)), draw(st.integers(1, 9))), start, end)
        for start, end in pairwise(edges)
        if end > start
    )
    ids, log_probs = [token for token, _ in tokens], [value for _, value in tokens]
    return CarriedSample(ids, log_probs, spans, draw(ENDS) if tokens else None)


def covered(sample: CarriedSample) -> list[int]:
    return [place for span in sample.spans for place in range(span.start, span.end)]


@given(st.lists(samples(), min_size=1, max_size=5), st.integers(0, 2**64 - 1))
def test_a_group_comes_back_as_it_was_packed(group: list[CarriedSample], digest: int) -> None:
    found = unpack_group(pack_group(group, digest), len(group), digest)
    assert [replace(one, output_ids=list(one.output_ids), log_probs=list(one.log_probs)) for one in group] == list(
        found
    )


@given(st.lists(samples(), min_size=1, max_size=3), st.data())
def test_bytes_that_were_cut_or_changed_are_refused(group: list[CarriedSample], data: st.DataObject) -> None:
    whole = pack_group(group, 7)
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    for wrong in (changed, whole[:place], whole + b"\0", b""):
        with pytest.raises(ValueError, match=r"."):
            unpack_group(wrong, len(group), 7)


def test_the_samples_of_another_prompt_or_other_sampling_are_refused() -> None:
    digest = sampling_digest([1, 2], PARAMS)
    packed = pack_group([CarriedSample()] * 2, digest)
    assert unpack_group(packed, 2, sampling_digest((1, 2), replace(PARAMS, seed=99))) == (CarriedSample([], []),) * 2
    others = [
        sampling_digest([1, 3], PARAMS),
        sampling_digest([1, 2], replace(PARAMS, temperature=0.6)),
        sampling_digest([1, 2], replace(PARAMS, max_new_tokens=7)),
        sampling_digest([1, 2], replace(PARAMS, stop_token_ids=(2,))),
    ]
    for other in others:
        with pytest.raises(ValueError, match="wanted are 2"):
            unpack_group(packed, 2, other)
    with pytest.raises(ValueError, match="wanted are 3"):
        unpack_group(packed, 3, digest)


@given(samples(), samples())
def test_what_follows_stands_behind_with_spans_moved_and_no_gap(begun: CarriedSample, more: CarriedSample) -> None:
    begun = replace(begun, finish=None)
    whole = begun.followed_by(more)
    assert list(whole.output_ids) == [*begun.output_ids, *more.output_ids]
    assert list(whole.log_probs) == [*begun.log_probs, *more.log_probs]
    assert covered(whole) == list(range(len(whole.output_ids)))
    made = [span.weight for span in whole.spans for _ in range(span.start, span.end)]
    assert made == [span.weight for one in (begun, more) for span in one.spans for _ in range(span.start, span.end)]
    assert whole.finish == more.finish


def test_a_span_over_the_seam_is_one() -> None:
    begun = CarriedSample([1, 2], [-1.0, -2.0], (VersionSpan(weight(1), 0, 1), VersionSpan(weight(2), 1, 2)))
    more = CarriedSample(
        [3, 4, 5],
        [-3.0, -4.0, -5.0],
        (VersionSpan(weight(2), 0, 2), VersionSpan(weight(3), 2, 3)),
        FinishReason.STOP,
    )
    assert begun.followed_by(more) == CarriedSample(
        [1, 2, 3, 4, 5],
        [-1.0, -2.0, -3.0, -4.0, -5.0],
        (VersionSpan(weight(1), 0, 1), VersionSpan(weight(2), 1, 4), VersionSpan(weight(3), 4, 5)),
        FinishReason.STOP,
    )


@given(samples(), st.integers(1, 12))
def test_a_sample_that_is_cut_goes_on(sample: CarriedSample, limit: int) -> None:
    first = sample.first(limit)
    length = min(limit, len(sample.output_ids))
    assert list(first.output_ids) == list(sample.output_ids[:length])
    assert np.array_equal(first.log_probs, sample.log_probs[:length])
    assert covered(first) == list(range(length))
    assert first.finish == (sample.finish if length == len(sample.output_ids) else None)
