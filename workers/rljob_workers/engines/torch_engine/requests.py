"""What runs through the engine: a batch of prompt groups, what has come of it, pauses, and what its parts raise.

Written by the model loop, read by the HTTP edge once it is `done`; the edge turns each error into a status and
a sentence. No per-sample Python: rows are numpy columns over all samples of the batch.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rljob_workers.engines.base import VersionSpan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rljob_api.wire.identity import WeightId
    from rljob_workers.engines.torch_engine.stop_texts import StopTexts


class EngineFault(Exception):
    """Base: a sentence and the HTTP status that it is answered with."""

    status = 500


class BadRequest(EngineFault):
    """The request can never be served."""

    status = 400


class NotServing(EngineFault):
    """No weights are loaded, or they went while the request ran."""

    status = 503


class StepFailed(EngineFault):
    """Computing failed; the requests that took part are lost, the server is not."""

    status = 500


IntArray = npt.NDArray[np.int64]


class EndReason(IntEnum):
    """Why a sample ended; the order is that of `FINISH_NAMES`."""

    STOP = 0
    LENGTH = 1
    ABORT = 2


GOES_ON = -1
"""In the place of an EndReason."""


FINISH_NAMES = ("stop", "length", "abort")
"""As the dialect names them."""


class PauseMode(StrEnum):
    """What a pause does to running samples."""

    ABORT = "abort"
    """They end with the tokens that they have."""
    RETRACT = "retract"
    """They keep their tokens; their KV is recomputed when generation goes on."""
    IN_PLACE = "in_place"
    """They keep tokens and KV, also across an update of the weights."""
    DRAIN = "drain"
    """They run to their ends, and the pause is answered then; what has not begun waits. An extension of ours."""


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """One prompt and how its `num_samples` samples are drawn; the i-th with seed `seed + i`."""

    rid: str
    prompt: Sequence[int]
    num_samples: int
    seed: int
    max_new_tokens: int
    temperature: float
    """0: greedy."""
    top_p: float
    top_k: int
    """0: all tokens."""
    stop_token_ids: frozenset[int]
    """End of sequence included, unless it is to be ignored."""
    min_p: float = 0.0
    """0: all tokens."""
    stop: StopTexts | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _WeightMark:
    """From output position `starts[i]` on, row `rows[i]` was drawn under `weight`."""

    weight: WeightId
    rows: IntArray
    starts: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """What of a batch goes out together: rows that have ended, whole, and what others have drawn."""

    rows: IntArray
    starts: IntArray
    """[rows], as the others: where the tokens begin in the output."""
    lengths: IntArray
    """Of the whole output now."""
    reasons: IntArray
    """EndReason, GOES_ON for a row that has not ended."""
    tokens: npt.NDArray[np.int32]
    """Flat, row after row."""
    log_probs: npt.NDArray[np.float32]
    weight: WeightId | None
    """The weight that drew every token of the batch; None if there were several, or none."""
    spans: list[list[VersionSpan]] | None
    """Of the whole outputs; None where `weight` drew all."""


class Sent:
    """What of a batch went out before."""

    def __init__(self, num_rows: int) -> None:
        """Nothing."""
        self.tokens = np.zeros(num_rows, dtype=np.int64)
        """[rows] Of rows that go on."""
        self.ended = np.zeros(num_rows, dtype=np.bool_)
        """[rows]"""

    def add(self, growth: Growth) -> None:
        """It went out."""
        self.tokens[growth.rows] = growth.lengths
        self.ended[growth.rows] = growth.reasons != GOES_ON


class Batch:
    """One HTTP request: groups in order, a row per sample."""

    def __init__(self, groups: Sequence[PromptGroup]) -> None:
        """Nothing of it runs yet."""
        self.groups = tuple(groups)
        counts = [group.num_samples for group in groups]
        self.first_rows = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        """[groups + 1]: the rows of group g are first_rows[g] .. first_rows[g + 1] - 1."""
        self.num_rows = int(self.first_rows[-1])
        width = max(group.max_new_tokens for group in groups)
        self.tokens = np.empty((self.num_rows, width), dtype=np.int32)
        self.log_probs = np.empty((self.num_rows, width), dtype=np.float32)
        self.lengths = np.zeros(self.num_rows, dtype=np.int64)
        self.reasons = np.full(self.num_rows, EndReason.ABORT, dtype=np.int64)
        self.error: EngineFault | None = None
        self._marks: list[_WeightMark] = []
        self._ended = np.zeros(self.num_rows, dtype=np.bool_)
        self.done: Future[None] = Future()
        """Has its result once every row has ended, with an error of the batch too; nothing else cancels or sets it."""
        self.done.set_running_or_notify_cancel()  # a waiter that is cancelled does not cancel it

    def mark_weight(self, weight: WeightId, rows: IntArray, starts: IntArray) -> None:
        """Tokens that follow are drawn under `weight`."""
        self._marks.append(_WeightMark(weight, rows.copy(), starts.copy()))

    def finish_rows(
        self,
        rows: IntArray,
        tokens: npt.NDArray[np.int32],
        log_probs: npt.NDArray[np.float32],
        lengths: IntArray,
        reasons: IntArray,
    ) -> None:
        """Takes over ended samples; what stands beyond a row's length means nothing."""
        width = min(tokens.shape[1], self.tokens.shape[1])
        self.tokens[rows, :width] = tokens[:, :width]
        self.log_probs[rows, :width] = log_probs[:, :width]
        self.lengths[rows] = lengths
        self.reasons[rows] = reasons
        self._close(rows)

    def abort_unstarted(self, rows: IntArray) -> None:
        """Closes rows that never ran: no tokens, reason abort."""
        self._close(rows)

    def fail(self, error: EngineFault) -> None:
        """Ends the whole batch with an error; twice is once."""
        if not self.done.done():
            self.error = error
            self._close(np.flatnonzero(~self._ended))

    def growth(self, sent: Sent, lengths: IntArray | None = None) -> Growth:
        """Rows that have ended and were not sent as such, and tokens of others that were not sent.

        `lengths` [rows]: of rows that go on, whose tokens are in place; None: nothing of those.
        """
        lengths = self.lengths if lengths is None else lengths
        is_new = np.where(self._ended, ~sent.ended, lengths > sent.tokens)
        rows = np.flatnonzero(is_new)
        starts = np.where(self._ended, 0, sent.tokens)[rows]
        ends = lengths[rows]
        place = np.arange(ends.max(initial=0))
        is_out = (place >= starts[:, None]) & (place < ends[:, None])
        weight = self.uniform_weight()
        spans = None if weight else list(compress(self.spans(lengths), is_new))
        return Growth(
            rows,
            starts,
            ends,
            np.where(self._ended, self.reasons, GOES_ON)[rows],
            self.tokens[rows, : place.size][is_out],
            self.log_probs[rows, : place.size][is_out],
            weight,
            spans,
        )

    def uniform_weight(self) -> WeightId | None:
        """The weight that drew every token; None if there were several, or none."""
        weights = {mark.weight for mark in self._marks}
        return weights.pop() if len(weights) == 1 else None

    def spans(self, lengths: IntArray | None = None) -> list[list[VersionSpan]]:
        """Per row, in order and without gaps. `lengths` [rows]: of rows that may not have ended."""
        begins: list[list[tuple[WeightId, int]]] = [[] for _ in range(self.num_rows)]
        for mark in self._marks:
            for row, start in zip(mark.rows.tolist(), mark.starts.tolist(), strict=True):
                if begins[row] and begins[row][-1][1] == start:
                    begins[row].pop()  # nothing was drawn under the weight before
                if not begins[row] or begins[row][-1][0] != mark.weight:
                    begins[row].append((mark.weight, start))
        ends = (self.lengths if lengths is None else lengths).tolist()
        return [_spans_of(begin, length) for begin, length in zip(begins, ends, strict=True)]

    def _close(self, rows: IntArray) -> None:
        assert not self._ended[rows].any(), "a sample ended twice"
        self._ended[rows] = True
        if rows.size and self._ended.all():
            self.done.set_result(None)


def _spans_of(begins: list[tuple[WeightId, int]], length: int) -> list[VersionSpan]:
    if not begins:
        return []  # it was ended before its first token
    ends = [start for _, start in begins[1:]] + [length]
    return [VersionSpan(weight, start, end) for (weight, start), end in zip(begins, ends, strict=True) if end > start]
