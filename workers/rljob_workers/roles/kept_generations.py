"""Which samples of a rollout are kept as text, and what is written down of them. On the actor's global rank 0.

They are spread over its rows by place, whatever they are worth: a look at them is a look at the rollout.
"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.names import RolloutId
from rljob_workers import pipeline
from rljob_workers.roles.stages.group_rows import FINISH_CODES
from rljob_workers.roles.stages.score import TextDecoder
from rljob_workers.telemetry.sample_logs import GenerationLog, LoggedGeneration, SpanOfVersion
from rljob_workers.transfer_queue.types import Batch

_FINISH_REASONS = {code: reason for reason, code in FINISH_CODES.items()}


def places_to_keep(rollout_id: int, num_rows: int, slice_index: int, num_slices: int, count: int) -> list[int]:
    """Places in a slice of `num_rows` rows, so that `count` of all slices are kept, evenly.

    One of each stretch of equal length, and in each another one: of other places in their groups.
    """
    of_slice = count * (slice_index + 1) // num_slices - count * slice_index // num_slices
    kept = min(of_slice, num_rows)
    stretch = num_rows // max(1, kept)
    return [number * stretch + (number + rollout_id) % stretch for number in range(kept)]


class KeptGenerations:
    """The samples that are kept of each rollout."""

    def __init__(
        self, log: GenerationLog, decode: TextDecoder, *, per_rollout: int, num_slices: int, samples_per_prompt: int
    ) -> None:
        """`decode` leaves special tokens in: what is wrong with a template is seen by them."""
        self._log = log
        self._decode = decode
        self._per_rollout = per_rollout
        self._num_slices = num_slices
        self._samples_per_prompt = samples_per_prompt

    def add(self, rollout_id: RolloutId, epoch: int, slice_index: int, batch: Batch) -> None:
        """Keeps some rows of a slice."""
        places = places_to_keep(rollout_id, len(batch), slice_index, self._num_slices, self._per_rollout)
        if places:
            self._log.append(list(self._logged(rollout_id, epoch, batch, places)))

    def _logged(self, rollout_id: RolloutId, epoch: int, batch: Batch, places: list[int]) -> Iterator[LoggedGeneration]:
        columns = batch.columns
        rows = [columns[pipeline.TOKENS].row(place).tolist() for place in places]
        lengths = [int(columns[pipeline.RESPONSE_LENGTHS].values[place]) for place in places]
        cuts = [len(row) - length for row, length in zip(rows, lengths, strict=True)]
        texts = self._decode([part for row, cut in zip(rows, cuts, strict=True) for part in (row[:cut], row[cut:])])
        for number, place in enumerate(places):
            advantages = columns[pipeline.ADVANTAGES].row(place)
            yield LoggedGeneration(
                rollout=rollout_id,
                epoch=epoch,
                group=int(batch.groups[place]),
                index=int(batch.rows[place]) % self._samples_per_prompt,
                prompt=texts[2 * number],
                response=texts[2 * number + 1],
                prompt_tokens=cuts[number],
                response_tokens=lengths[number],
                finish_reason=_FINISH_REASONS[int(columns[pipeline.FINISH_REASONS].values[place])],
                reward=float(columns[pipeline.REWARDS].values[place]),
                valid=bool(columns[pipeline.VALID].values[place]),
                advantage=float(advantages[0]) if len(advantages) else 0.0,
                versions=[SpanOfVersion(*span) for span in columns[pipeline.VERSION_SPANS].row(place).tolist()],
            )
