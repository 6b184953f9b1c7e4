"""Replies of the torch engine's server as events: blocks of flat arrays, cut into samples.

Used by its client. Torch-free and numpy-free, as the client is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import (
    Drawn,
    Ended,
    EngineGone,
    Event,
    FinishReason,
    GivenUp,
    Grown,
    Sample,
    VersionSpan,
)


class ReplyReader:
    """Reads the reply of one request, which comes in one piece or in lines.

    for line in reply: yield from reader.events(line)
    reader.require_all()
    """

    def __init__(self, num_samples: int) -> None:
        """Nothing has come yet."""
        self._counted = 0
        self._num_tokens = 0
        """In samples that have ended."""
        self._come: list[int | None] = [0] * num_samples
        """Of each sample, tokens that have come while it goes on; None: it has ended."""

    def events(self, line: Any) -> Iterator[Event]:  # noqa: ANN401 (JSON)
        """Events of a line. The last one counts no tokens: all samples have ended with it."""
        samples = self._samples(line.get("grown", line))
        drawn = line.get("progress", self._num_tokens)
        if drawn > self._counted:
            yield Drawn(drawn - self._counted)
            self._counted = drawn
        yield from samples

    def require_all(self) -> None:
        """Raises EngineGone where a sample has not ended."""
        if num_left := sum(come is not None for come in self._come):
            raise EngineGone(
                f"The engine answered {len(self._come) - num_left} samples, but {len(self._come)} were asked for. "
                "None counts."
            )

    def _samples(self, block: Any) -> list[Event]:  # noqa: ANN401 (JSON)
        rows, starts, lengths, reasons = (block[name] for name in ("rows", "starts", "lengths", "finish_reasons"))
        tokens, log_probs = block["output_ids"], block["log_probs"]
        num_tokens = sum(lengths) - sum(starts)
        _check_lengths(len(tokens), num_tokens, "tokens")
        _check_lengths(len(log_probs), num_tokens, "log-probs")
        finishes = [FinishReason(reason) for reason in block["finish_words"]]
        weight = None if block["weight"] is None else _weight(block["weight"])
        given = block["weight_versions"]
        grown: dict[int, Sample] = {}
        ended: dict[int, Sample] = {}
        end = 0
        for place, (row, start, length, reason) in enumerate(zip(rows, starts, lengths, reasons, strict=True)):
            begin, end = end, end + length - start
            spans = _spans(given[place], start) if weight is None else _whole(weight, length - start)
            goes_on = reason < 0
            finish = FinishReason.ABORT if goes_on else finishes[reason]
            kind, whole_from = (grown, self._come[row]) if goes_on else (ended, 0)
            if self._come[row] is None or start != whole_from:
                raise EngineGone(
                    f"The engine continued sample {row} at token {start}, and {self._come[row]} had come. None counts."
                )
            kind[row] = Sample(tokens[begin:end], log_probs[begin:end], finish, spans)
            self._come[row] = length if goes_on else None
        self._num_tokens += sum(len(sample.output_ids) for sample in ended.values())
        given_up = {row: sample for row, sample in ended.items() if sample.goes_on}
        if given_up:
            ended = {row: sample for row, sample in ended.items() if not sample.goes_on}
        return [event for event in (Grown(grown), Ended(ended), GivenUp(given_up)) if event.samples]


def _whole(weight: WeightId, num_tokens: int) -> tuple[VersionSpan, ...]:
    return (VersionSpan(weight, 0, num_tokens),) if num_tokens else ()


def _spans(given: Sequence[dict[str, int]], start: int) -> tuple[VersionSpan, ...]:
    """Spans of the tokens from `start` on."""
    behind = (span for span in given if span["end"] > start)
    return tuple(VersionSpan(_weight(span), max(span["start"] - start, 0), span["end"] - start) for span in behind)


def _weight(given: dict[str, int]) -> WeightId:
    return WeightId(lineage=Lineage(given["lineage"]), version=WeightVersion(given["version"]))


def _check_lengths(found: int, num_tokens: int, what: str) -> None:
    if found != num_tokens:
        raise EngineGone(f"The engine answered {found} {what} for {num_tokens} tokens. None counts.")
