"""Replies of the torch engine as events, in one piece and in lines."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import Drawn, Ended, EngineGone, FinishReason, GivenUp, Grown, Sample, VersionSpan
from rljob_workers.engines.torch_engine.replies import ReplyReader

OLD = WeightId(lineage=Lineage(1), version=WeightVersion(3))
NEW = WeightId(lineage=Lineage(1), version=WeightVersion(4))
GOES_ON, STOP, LENGTH, ABORT = -1, 0, 1, 2


def block(*samples: tuple[int, int, list[int], int], spans: list[list[tuple[int, int, int]]] | None = None) -> Any:
    """Of each sample its number, where its tokens begin, the tokens and how it ended; log-probs are their negatives."""
    tokens = [token for _, _, part, _ in samples for token in part]
    versions = [[{"lineage": 1, "version": v, "start": s, "end": e} for v, s, e in row] for row in spans or ()]
    return {
        "rows": [row for row, *_ in samples],
        "starts": [start for _, start, _, _ in samples],
        "lengths": [start + len(part) for _, start, part, _ in samples],
        "output_ids": tokens,
        "log_probs": [-float(token) for token in tokens],
        "finish_reasons": [reason for *_, reason in samples],
        "finish_words": ["stop", "length", "abort"],
        "weight": None if spans else {"lineage": 1, "version": 3},
        "weight_versions": versions if spans else None,
    }


def sample(tokens: list[int], reason: FinishReason, *spans: VersionSpan) -> Sample:
    return Sample(tokens, [-float(token) for token in tokens], reason, spans)


def test_a_reply_in_one_piece_has_all_samples() -> None:
    reader = ReplyReader(3)
    events = list(reader.events(block((0, 0, [7, 8], LENGTH), (1, 0, [], ABORT), (2, 0, [9], STOP))))
    reader.require_all()
    ended = {
        0: sample([7, 8], FinishReason.LENGTH, VersionSpan(OLD, 0, 2)),
        2: sample([9], FinishReason.STOP, VersionSpan(OLD, 0, 1)),
    }
    assert events == [Drawn(3), Ended(ended), GivenUp({1: sample([], FinishReason.ABORT)})]


def test_lines_count_tokens_once_and_show_what_has_come_since() -> None:
    """A sample that has ended comes whole; the spans of what goes on are those of its new tokens."""
    reader = ReplyReader(2)
    lines = [
        {"progress": 3, "grown": block((0, 0, [5], GOES_ON))},
        {"progress": 3, "grown": block()},
        {
            "progress": 6,
            "grown": block((0, 1, [6, 7], GOES_ON), (1, 0, [1, 2], STOP), spans=[[(3, 0, 2), (4, 2, 3)], [(3, 0, 2)]]),
        },
        block((0, 0, [5, 6, 7, 8], LENGTH), spans=[[(3, 0, 2), (4, 2, 4)]]),
    ]
    first, second, third, last = [list(reader.events(line)) for line in lines]
    reader.require_all()
    assert first == [Drawn(3), Grown({0: sample([5], FinishReason.ABORT, VersionSpan(OLD, 0, 1))})]
    assert second == []
    more = sample([6, 7], FinishReason.ABORT, VersionSpan(OLD, 0, 1), VersionSpan(NEW, 1, 2))
    assert third == [Drawn(3), Grown({0: more}), Ended({1: sample([1, 2], FinishReason.STOP, VersionSpan(OLD, 0, 2))})]
    whole = sample([5, 6, 7, 8], FinishReason.LENGTH, VersionSpan(OLD, 0, 2), VersionSpan(NEW, 2, 4))
    assert last == [Ended({0: whole})]


def test_a_reply_with_samples_missing_counts_for_nothing() -> None:
    reader = ReplyReader(2)
    list(reader.events(block((0, 0, [7, 8], LENGTH))))
    with pytest.raises(EngineGone, match="answered 1 samples, but 2 were asked for"):
        reader.require_all()


@pytest.mark.parametrize(
    "second", [(0, 2, [9], GOES_ON), (0, 1, [], LENGTH), (1, 0, [1], STOP)], ids=["a gap", "not whole", "twice"]
)
def test_a_sample_that_does_not_follow_what_came_before_counts_for_nothing(second: Any) -> None:
    reader = ReplyReader(2)
    list(reader.events({"progress": 2, "grown": block((0, 0, [5], GOES_ON), (1, 0, [1], STOP))}))
    with pytest.raises(EngineGone, match="had come"):
        list(reader.events(block(second)))


@pytest.mark.parametrize(("field", "what"), [("output_ids", "tokens"), ("log_probs", "log-probs")])
def test_a_reply_whose_arrays_differ_counts_for_nothing(field: str, what: str) -> None:
    with pytest.raises(EngineGone, match=f"answered 3 {what} for 2 tokens"):
        list(ReplyReader(1).events(block((0, 0, [7, 8], STOP)) | {field: [1, 2, 3]}))
