"""A partial's bytes give back what was packed, or nothing; samples are cut and joined without a gap."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.engines.base import NOT_BEGUN, FinishReason, Sample, SamplingParams, VersionSpan, continued
from rljob_workers.rollout.carried import beginning, pack_group, sampling_digest, unpack_group
from tests.weights import weight

PARAMS = SamplingParams(0.5, 0.9, 4, 6, (1,), num_samples=2, seed=3)
FINISHES = st.sampled_from(FinishReason)
FLOATS = st.floats(-50, 0, width=32)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
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
    return Sample(ids, log_probs, draw(FINISHES) if tokens else FinishReason.ABORT, spans)


def covered(sample: Sample) -> list[int]:
    return [place for span in sample.spans for place in range(span.start, span.end)]


@given(st.lists(samples(), min_size=1, max_size=5), st.integers(0, 2**64 - 1))
def test_a_group_comes_back_as_it_was_packed(group: list[Sample], digest: int) -> None:
    found = unpack_group(pack_group(group, digest), len(group), digest)
    assert list(found) == group


@given(st.lists(samples(), min_size=1, max_size=3), st.data())
def test_bytes_that_were_cut_or_changed_are_refused(group: list[Sample], data: st.DataObject) -> None:
    whole = pack_group(group, 7)
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    for wrong in (changed, whole[:place], whole + b"\0", b""):
        with pytest.raises(ValueError, match=r"."):
            unpack_group(wrong, len(group), 7)


@pytest.mark.parametrize(
    ("place", "byte", "problem"), [(4, 1, "in the form b'RLPG' 1"), (24, 255, r"the finish reasons \[255\]")]
)
def test_bytes_of_another_build_are_refused(place: int, byte: int, problem: str) -> None:
    """They are sealed as ours are."""
    body = bytearray(pack_group([NOT_BEGUN] * 2, 7)[:-8])
    body[place] = byte
    sealed = bytes(body) + struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(body)))
    with pytest.raises(ValueError, match=problem):
        unpack_group(sealed, 2, 7)


def test_the_samples_of_another_prompt_or_other_sampling_are_refused() -> None:
    digest = sampling_digest([1, 2], PARAMS)
    packed = pack_group([NOT_BEGUN] * 2, digest)
    assert unpack_group(packed, 2, sampling_digest((1, 2), replace(PARAMS, seed=99))) == (NOT_BEGUN,) * 2
    others = [
        sampling_digest([1, 3], PARAMS),
        sampling_digest([1, 2], replace(PARAMS, temperature=0.6)),
        sampling_digest([1, 2], replace(PARAMS, max_new_tokens=7)),
        sampling_digest([1, 2], replace(PARAMS, stop_token_ids=(2,))),
        sampling_digest([1, 2], replace(PARAMS, min_p=0.1)),
    ]
    for other in others:
        with pytest.raises(ValueError, match="wanted are 2"):
            unpack_group(packed, 2, other)
    with pytest.raises(ValueError, match="wanted are 3"):
        unpack_group(packed, 3, digest)


@given(samples(), samples())
def test_what_follows_stands_behind_with_spans_moved_and_no_gap(begun: Sample, more: Sample) -> None:
    whole = continued(begun, more)
    assert list(whole.output_ids) == [*begun.output_ids, *more.output_ids]
    assert list(whole.log_probs) == [*begun.log_probs, *more.log_probs]
    assert covered(whole) == list(range(len(whole.output_ids)))
    made = [span.weight for span in whole.spans for _ in range(span.start, span.end)]
    assert made == [span.weight for one in (begun, more) for span in one.spans for _ in range(span.start, span.end)]
    assert whole.finish_reason == more.finish_reason


def test_a_span_over_the_seam_is_one() -> None:
    begun = Sample(
        [1, 2], [-1.0, -2.0], FinishReason.ABORT, (VersionSpan(weight(1), 0, 1), VersionSpan(weight(2), 1, 2))
    )
    more = Sample(
        [3, 4, 5],
        [-3.0, -4.0, -5.0],
        FinishReason.STOP,
        (VersionSpan(weight(2), 0, 2), VersionSpan(weight(3), 2, 3)),
    )
    assert continued(begun, more) == Sample(
        [1, 2, 3, 4, 5],
        [-1.0, -2.0, -3.0, -4.0, -5.0],
        FinishReason.STOP,
        (VersionSpan(weight(1), 0, 1), VersionSpan(weight(2), 1, 4), VersionSpan(weight(3), 4, 5)),
    )


@given(samples(), st.integers(1, 12))
def test_a_sample_that_is_cut_goes_on(sample: Sample, limit: int) -> None:
    first = beginning(sample, limit)
    length = min(limit, len(sample.output_ids))
    assert list(first.output_ids) == list(sample.output_ids[:length])
    assert np.array_equal(first.log_probs, sample.log_probs[:length])
    assert covered(first) == list(range(length))
    assert first.goes_on if length < len(sample.output_ids) else first == sample
