"""Replies of `/generate` as `Generation` values: the plain dialect, and the compact extension.

Pure. A reply that has not what was asked for is EngineGone: nothing of it can count.
"""

from __future__ import annotations

from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import Generation, Sample, VersionSpan
from rljob_workers.engines.errors import EngineGone

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def read_compact(body: Any, num_samples: Sequence[int]) -> list[Generation]:  # noqa: ANN401 (JSON)
    """The compact extension: flat arrays over all samples."""
    lengths: list[int] = body["lengths"]
    _check_count(len(lengths), num_samples)
    tokens, log_probs, words = body["output_ids"], body["log_probs"], body["finish_words"]
    _check_lengths(len(tokens), sum(lengths), "tokens")
    _check_lengths(len(log_probs), sum(lengths), "log-probs")
    uniform = body["weight"]
    weight = _weight(uniform) if uniform else None
    given = body["weight_versions"]
    samples = []
    ends = accumulate(lengths)
    for row, (length, end, reason) in enumerate(zip(lengths, ends, body["finish_reasons"], strict=True)):
        spans = (VersionSpan(weight, 0, length),) if weight is not None else _spans(given[row])
        samples.append(Sample(tokens[end - length : end], log_probs[end - length : end], words[reason], spans))
    return _grouped(samples, num_samples)


def read_samples(
    body: Any,  # noqa: ANN401 (JSON)
    num_samples: Sequence[int],
    before: WeightId | None,
    after: WeightId | None,
) -> list[Generation]:
    """The plain dialect: one object per sample, prompts in order. `before` and `after` serve where spans are absent."""
    replies = body if isinstance(body, list) else [body]
    _check_count(len(replies), num_samples)
    return _grouped([_read_sample(reply, before, after) for reply in replies], num_samples)


def _read_sample(reply: dict[str, Any], before: WeightId | None, after: WeightId | None) -> Sample:
    meta = reply["meta_info"]
    triples = meta["output_token_logprobs"]
    tokens = reply.get("output_ids") or [token for _, token, *_ in triples]
    _check_lengths(len(triples), len(tokens), "log-probs")
    given = meta.get("weight_versions")
    spans = _bounds(before, after, len(tokens)) if given is None else _spans(given)
    return Sample(tokens, [value for value, *_ in triples], meta["finish_reason"]["type"], spans)


def _bounds(before: WeightId | None, after: WeightId | None, length: int) -> tuple[VersionSpan, ...]:
    """Oldest and newest are what is known; where they differ, an empty span at the end names the newest."""
    assert before is not None, "the caller asks the server when it gives no spans"
    oldest = VersionSpan(before, 0, length)
    return (oldest,) if after is None or after == before else (oldest, VersionSpan(after, length, length))


def _spans(given: list[dict[str, int]]) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(_weight(span), span["start"], span["end"]) for span in given)


def _weight(given: dict[str, int]) -> WeightId:
    return WeightId(lineage=Lineage(given["lineage"]), version=WeightVersion(given["version"]))


def _check_count(found: int, num_samples: Sequence[int]) -> None:
    if found != sum(num_samples):
        raise EngineGone(f"The engine answered {found} samples, but {sum(num_samples)} were asked for. None counts.")


def _check_lengths(found: int, num_tokens: int, what: str) -> None:
    if found != num_tokens:
        raise EngineGone(f"The engine answered {found} {what} for {num_tokens} tokens. None counts.")


def _grouped(samples: Iterable[Sample], num_samples: Sequence[int]) -> list[Generation]:
    rest = iter(samples)
    return [Generation(tuple(islice(rest, count))) for count in num_samples]
