"""Replies of `/generate` as `Generation` values.

Pure. A reply that has not what was asked for is EngineGone: nothing of it can count.
"""

from __future__ import annotations

from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import FinishReason, Generation, Sample, VersionSpan
from rljob_workers.engines.errors import EngineGone

if TYPE_CHECKING:
    from collections.abc import Sequence


def read_compact(body: Any, num_samples: Sequence[int]) -> list[Generation]:  # noqa: ANN401 (JSON)
    """Flat arrays over all samples, cut into the samples of each prompt."""
    lengths: list[int] = body["lengths"]
    if len(lengths) != sum(num_samples):
        raise EngineGone(
            f"The engine answered {len(lengths)} samples, but {sum(num_samples)} were asked for. None counts."
        )
    tokens, log_probs = body["output_ids"], body["log_probs"]
    reasons = [FinishReason(word) for word in body["finish_words"]]
    _check_lengths(len(tokens), sum(lengths), "tokens")
    _check_lengths(len(log_probs), sum(lengths), "log-probs")
    uniform = body["weight"]
    weight = _weight(uniform) if uniform else None
    given = body["weight_versions"]
    samples = []
    ends = accumulate(lengths)
    for row, (length, end, reason) in enumerate(zip(lengths, ends, body["finish_reasons"], strict=True)):
        spans = (VersionSpan(weight, 0, length),) if weight is not None else _spans(given[row])
        samples.append(Sample(tokens[end - length : end], log_probs[end - length : end], reasons[reason], spans))
    rest = iter(samples)
    return [Generation(tuple(islice(rest, count))) for count in num_samples]


def _spans(given: list[dict[str, int]]) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(_weight(span), span["start"], span["end"]) for span in given)


def _weight(given: dict[str, int]) -> WeightId:
    return WeightId(lineage=Lineage(given["lineage"]), version=WeightVersion(given["version"]))


def _check_lengths(found: int, num_tokens: int, what: str) -> None:
    if found != num_tokens:
        raise EngineGone(f"The engine answered {found} {what} for {num_tokens} tokens. None counts.")
