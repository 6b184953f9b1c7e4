"""Replies of servers with and without spans."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import VersionSpan
from rljob_workers.engines.errors import EngineGone
from rljob_workers.engines.sglang_dialect.replies import read_compact, read_samples

OLD = WeightId(lineage=Lineage(1), version=WeightVersion(3))
NEW = WeightId(lineage=Lineage(1), version=WeightVersion(4))


def reply(**meta: Any) -> dict[str, Any]:
    """A sample as SGLang gives it."""
    given = {
        "finish_reason": {"type": "length", "length": 2},
        "output_token_logprobs": [[-0.5, 7, None], [-1.5, 8, None]],
    }
    return {"text": "", "output_ids": [7, 8], "meta_info": given | meta}


def test_a_server_without_spans_gives_the_version_held_before() -> None:
    (generation,) = read_samples([reply()], [1], OLD, OLD)
    (sample,) = generation.samples
    assert (sample.output_ids, sample.log_probs, sample.finish_reason) == ([7, 8], [-0.5, -1.5], "length")
    assert sample.spans == (VersionSpan(OLD, 0, 2),)


def test_versions_held_before_and_after_bound_the_tokens() -> None:
    (generation,) = read_samples([reply()], [1], OLD, NEW)
    spans = generation.samples[0].spans
    assert (spans[0].weight, spans[-1].weight) == (OLD, NEW)


def test_spans_of_the_server_are_taken() -> None:
    given = [{"lineage": 1, "version": 3, "start": 0, "end": 1}, {"lineage": 1, "version": 4, "start": 1, "end": 2}]
    (generation,) = read_samples(reply(weight_versions=given), [1], None, None)
    assert generation.samples[0].spans == (VersionSpan(OLD, 0, 1), VersionSpan(NEW, 1, 2))


def test_token_ids_are_read_from_log_probs_where_a_server_gives_no_ids() -> None:
    without_ids = reply()
    del without_ids["output_ids"]
    (generation,) = read_samples([without_ids], [1], OLD, OLD)
    assert generation.samples[0].output_ids == [7, 8]


def test_compact_replies_are_cut_into_samples() -> None:
    body = {
        "lengths": [2, 0, 1],
        "output_ids": [7, 8, 9],
        "log_probs": [-0.5, -1.5, -2.5],
        "finish_reasons": [1, 2, 0],
        "finish_words": ["stop", "length", "abort"],
        "weight": {"lineage": 1, "version": 3},
        "weight_versions": None,
    }
    first, second = read_compact(body, [2, 1])
    assert [sample.output_ids for sample in first.samples] == [[7, 8], []]
    assert second.samples[0].log_probs == [-2.5]
    assert [sample.finish_reason for sample in (*first.samples, *second.samples)] == ["length", "abort", "stop"]
    assert second.samples[0].spans == (VersionSpan(OLD, 0, 1),)


def test_a_reply_with_samples_missing_counts_for_nothing() -> None:
    with pytest.raises(EngineGone, match="answered 1 samples, but 2 were asked for"):
        read_samples([reply()], [2], OLD, OLD)


def test_a_sample_with_fewer_log_probs_than_tokens_counts_for_nothing() -> None:
    with pytest.raises(EngineGone, match="answered 2 log-probs for 3 tokens"):
        read_samples([reply() | {"output_ids": [7, 8, 9]}], [1], OLD, OLD)


@pytest.mark.parametrize(("field", "what"), [("output_ids", "tokens"), ("log_probs", "log-probs")])
def test_a_compact_reply_whose_arrays_differ_counts_for_nothing(field: str, what: str) -> None:
    body = {
        "lengths": [2],
        "output_ids": [7, 8],
        "log_probs": [-0.5, -1.5],
        "finish_reasons": [0],
        "finish_words": ["stop"],
        "weight": {"lineage": 1, "version": 3},
        "weight_versions": None,
    }
    with pytest.raises(EngineGone, match=f"answered 3 {what} for 2 tokens"):
        read_compact(body | {field: [1, 2, 3]}, [1])
