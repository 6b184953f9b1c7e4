"""What rank 0 of the actor reports of its training: audit lines, samples logged as text, the report of each step.

Called by the training loop; every rank gives the facts of its rows. Audit lines of step s are durable before version
s + 1 is published, and so before any record that contains s. Logged samples are spread over a rollout by place,
whatever their reward.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from rljob_api.metric_names import OF_REWARDS
from rljob_api.names import RolloutId, partition_name
from rljob_api.roles import audit_file
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.engines.base import FINISH_CODES
from rljob_workers.models.tokenizers import TextDecoder, text_decoder
from rljob_workers.rank_loop import RankParts
from rljob_workers.telemetry.sample_logs import (
    DrawsOfGroup,
    GenerationLog,
    LoggedGeneration,
    SampleLog,
    SpanOfVersion,
    TrainedSample,
    turns_of,
)
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.tensors.packed import LABEL, RowExtra, draws_of, unpack
from rljob_workers.training.step_metrics import FACTS, RolloutTally
from rljob_workers.transfer_queue.dataset import TrainingSlice
from rljob_workers.transfer_queue.types import Batch

_FINISH_REASONS = {code: reason for reason, code in FINISH_CODES.items()}


def places_to_log(rollout_id: int, num_rows: int, slice_index: int, num_slices: int, count: int) -> list[int]:
    """Places in a slice of `num_rows` rows, so that `count` of all slices are chosen, evenly.

    One of each stretch of equal length, and in each another one: of other places in their groups.
    """
    of_slice = count * (slice_index + 1) // num_slices - count * slice_index // num_slices
    chosen = min(of_slice, num_rows)
    stretch = num_rows // max(1, chosen)
    return [number * stretch + (number + rollout_id) % stretch for number in range(chosen)]


class GenerationSampler:
    """Chooses samples of each rollout and logs them as text."""

    def __init__(
        self, log: GenerationLog, decode: TextDecoder, *, per_rollout: int, num_slices: int, samples_per_prompt: int
    ) -> None:
        """`decode` leaves special tokens in: they show what is wrong with a template."""
        self._log = log
        self._decode = decode
        self._per_rollout = per_rollout
        self._num_slices = num_slices
        self._samples_per_prompt = samples_per_prompt

    def add(self, rollout_id: RolloutId, epoch: int, slice_index: int, batch: Batch) -> None:
        """Logs some rows of a slice."""
        places = places_to_log(rollout_id, len(batch.rows), slice_index, self._num_slices, self._per_rollout)
        if places:
            self._log.append(list(self._logged(rollout_id, epoch, batch, places)))

    def _logged(self, rollout_id: RolloutId, epoch: int, batch: Batch, places: list[int]) -> Iterator[LoggedGeneration]:
        columns = batch.columns
        rows = [columns[Column.TOKENS].row(place).tolist() for place in places]
        lengths = [int(columns[Column.RESPONSE_LENGTHS].values[place]) for place in places]
        cuts = [len(row) - length for row, length in zip(rows, lengths, strict=True)]
        texts = self._decode([part for row, cut in zip(rows, cuts, strict=True) for part in (row[:cut], row[cut:])])
        for number, place in enumerate(places):
            of_rows = Column.ROW_ADVANTAGES in columns
            advantages = columns[Column.ROW_ADVANTAGES if of_rows else Column.ADVANTAGES].row(place)
            extra = _extra_of(columns, place)
            yield LoggedGeneration(
                rollout=rollout_id,
                epoch=epoch,
                group=int(batch.groups[place]),
                index=int(batch.rows[place]) % self._samples_per_prompt,
                prompt=texts[2 * number],
                response=texts[2 * number + 1],
                prompt_tokens=cuts[number],
                response_tokens=lengths[number],
                finish_reason=_FINISH_REASONS[int(columns[Column.FINISH_REASONS].values[place])],
                reward=float(columns[Column.REWARDS].values[place]),
                valid=bool(columns[Column.VALID].values[place]),
                advantage=float(advantages[0]) if len(advantages) else 0.0,
                versions=[SpanOfVersion(*span) for span in columns[Column.VERSION_SPANS].row(place).tolist()],
                turns=turns_of(
                    columns[Column.LOSS_MASKS].row(place).tolist(), rows[number][cuts[number] :], self._decode
                ),
                draws=_draws_of_row(extra),
                label=_label_of_row(extra),
                reward_parts=_reward_parts_of_row(extra),
            )


def _extra_of(columns: Mapping[str, Jagged], place: int) -> RowExtra:
    """Label and parts of the reward of a row; rows of the release before have none."""
    return unpack(columns[Column.EXTRA].row(place).numpy().tobytes()) if Column.EXTRA in columns else RowExtra()


def _draws_of_row(extra: RowExtra) -> DrawsOfGroup | None:
    found = draws_of(extra.facts)
    return None if found is None else DrawsOfGroup(*found)


def _label_of_row(extra: RowExtra) -> str | None:
    label = extra.facts.get(LABEL)
    return None if label is None else str(label)


def _reward_parts_of_row(extra: RowExtra) -> dict[str, float]:
    return {
        name.removeprefix(OF_REWARDS): value for name, value in extra.metrics.items() if name.startswith(OF_REWARDS)
    }


def _draws_of(facts: torch.Tensor) -> list[DrawsOfGroup | None]:
    """Of the group of each row; `facts` [rows, len(FACTS)]."""
    of_rows = facts[:, [FACTS.index("draws"), FACTS.index("last_draw_refused")]].tolist()
    return [
        None if math.isnan(draws) else DrawsOfGroup(int(draws), last_refused=bool(refused))
        for draws, refused in of_rows
    ]


class AuditLog:
    """The audit of a role that trains: a line for each sample and pass."""

    def __init__(self, log: SampleLog | None, epoch: int, samples_per_prompt: int) -> None:
        """`log` is None where the audit is off."""
        self._log = log
        self._epoch = epoch
        self._samples_per_prompt = samples_per_prompt

    @classmethod
    def of(cls, rank: RankParts) -> AuditLog:
        """Of the rank's role; opens the file."""
        file = Path(rank.context.endpoints.run_dir) / audit_file(rank.context.incarnation.key.role)
        log = SampleLog(file) if rank.spec.telemetry.sample_log else None
        return cls(log, rank.session.incarnation.epoch, rank.spec.rollout.samples_per_prompt)

    def append(self, rollout_id: RolloutId, pass_index: int, facts: Sequence[torch.Tensor]) -> None:
        """Lines of a slice; `facts` of every rank's rows, columns as in FACTS."""
        if self._log is None:
            return
        name, per_group = partition_name(rollout_id), self._samples_per_prompt
        rows = torch.cat(list(facts))
        self._log.append(
            [
                TrainedSample(
                    name,
                    int(row["group"]),
                    int(row["row"]) % per_group,
                    int(row["oldest_version"]),
                    rollout_id,
                    self._epoch,
                    pass_index,
                    row["reward"],
                    bool(row["valid"]),
                    draws,
                    drawn_for=None if math.isnan(row["drawn_for"]) else int(row["drawn_for"]),
                    # NaN where none may be too old; a sample that was lost has no drawn token.
                    is_learnt=not 0 < row["drawn_tokens"] <= row["too_old_tokens"],
                )
                for row, draws in zip(
                    (dict(zip(FACTS, row, strict=True)) for row in rows.tolist()), _draws_of(rows), strict=True
                )
            ]
        )

    def sync(self) -> None:
        """Makes the lines durable that were logged so far."""
        if self._log is not None:
            self._log.sync()


class Leader:
    """Global rank 0 of the actor."""

    def __init__(
        self, session: RankSession, audit: AuditLog, generations: GenerationSampler | None, timeline: Timeline
    ) -> None:
        """`generations` is None where no texts are logged."""
        self._session = session
        self._timeline = timeline
        self._audit = audit
        self._generations = generations
        self._step_began = time.monotonic()

    @classmethod
    def of(cls, rank: RankParts, tokenizer: PreTrainedTokenizerBase, num_slices: int) -> Leader:
        """Of a job whose rollouts are trained in `num_slices` slices; opens its logs."""
        telemetry = rank.spec.telemetry
        if not telemetry.generations_per_rollout:
            return cls(rank.session, AuditLog.of(rank), None, rank.timeline)
        generations = GenerationSampler(
            GenerationLog(Path(rank.context.endpoints.run_dir)),
            text_decoder(tokenizer, skip_special_tokens=False),
            per_rollout=telemetry.generations_per_rollout,
            num_slices=num_slices,
            samples_per_prompt=rank.spec.rollout.samples_per_prompt,
        )
        return cls(rank.session, AuditLog.of(rank), generations, rank.timeline)

    def begin(self) -> None:
        """The first step begins now."""
        self._step_began = time.monotonic()

    def log_slice(
        self, rollout_id: RolloutId, pass_index: int, part: TrainingSlice, facts: Sequence[torch.Tensor]
    ) -> None:
        """Audit lines of a slice of every rank, and in the first pass the texts of some of its own rows.

        `facts` as in FACTS, by rank.
        """
        self._audit.append(rollout_id, pass_index, facts)
        if self._generations is not None and pass_index == 0:
            self._generations.add(rollout_id, self._session.incarnation.epoch, part.index, part.batch)

    def sync_samples(self) -> None:
        """Makes the audit lines durable that were logged so far."""
        self._audit.sync()

    def report(self, rollout_id: RolloutId, tally: RolloutTally) -> None:
        """Reports the trained step, whose version is published."""
        now = time.monotonic()
        seconds, self._step_began = now - self._step_began, now
        phases = self._timeline.take_seconds()
        self._session.report_step(tally.report(self._session.incarnation, rollout_id, seconds, phases))


class CriticReports:
    """What rank 0 of the critic reports: its audit, and its figures of each rollout, a part of the step's."""

    def __init__(self, rank: RankParts) -> None:
        self._audit = AuditLog.of(rank)
        self._session = rank.session
        self._timeline = rank.timeline
        self._step_began = time.monotonic()

    def begin(self) -> None:
        """The first step begins now."""
        self._step_began = time.monotonic()

    def log_slice(
        self,
        rollout_id: RolloutId,
        pass_index: int,
        part: TrainingSlice,  # noqa: ARG002 -- its texts are the actor's to log
        facts: Sequence[torch.Tensor],
    ) -> None:
        """Audit lines of a slice of every rank; `facts` as in FACTS, by rank."""
        self._audit.append(rollout_id, pass_index, facts)

    def sync_samples(self) -> None:
        """Makes the audit lines durable that were logged so far."""
        self._audit.sync()

    def report(self, rollout_id: RolloutId, tally: RolloutTally) -> None:
        """Reports that the critic has trained on the rollout."""
        now = time.monotonic()
        seconds, self._step_began = now - self._step_began, now
        report = tally.report(self._session.incarnation, rollout_id, seconds, {})
        metrics = tally.of_critic(seconds, self._timeline.take_seconds())
        self._session.report_step(report.model_copy(update={"metrics": metrics}))
