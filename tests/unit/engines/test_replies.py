"""Compact replies of the torch engine."""

from __future__ import annotations

import pytest

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import EngineGone, VersionSpan
from rljob_workers.engines.torch_engine.torch_client import read_compact

OLD = WeightId(lineage=Lineage(1), version=WeightVersion(3))


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
    body = {"lengths": [2], "output_ids": [7, 8], "log_probs": [-0.5, -1.5]}
    with pytest.raises(EngineGone, match="answered 1 samples, but 2 were asked for"):
        read_compact(body, [2])


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
