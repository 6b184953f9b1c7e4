"""What global rank 0 of the actor does beside its part of the work: audit, texts for people, and report.

Audit lines of step s are durable before version s + 1 is published, and so before any record that contains s.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from rljob_api.names import RolloutId, WeightVersion, partition_name
from rljob_api.wire.ranks import StepReport
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.roles.kept_generations import KeptGenerations
from rljob_workers.roles.stages.train import RolloutSummary
from rljob_workers.telemetry.sample_logs import SampleLog, TrainedSample
from rljob_workers.transfer_queue.dataset import TrainingSlice


class Leader:
    """Global rank 0 of the actor."""

    def __init__(
        self,
        session: RankSession,
        samples: SampleLog | None,
        generations: KeptGenerations | None,
        samples_per_prompt: int,
    ) -> None:
        """`samples` is None where the audit is off, `generations` where no texts are kept."""
        self._session = session
        self._samples = samples
        self._generations = generations
        self._samples_per_prompt = samples_per_prompt
        self._step_began = time.monotonic()

    def begin(self) -> None:
        """The first step begins now."""
        self._step_began = time.monotonic()

    def log_samples(self, rollout_id: RolloutId, pass_index: int, facts: Sequence[torch.Tensor]) -> None:
        """Audit lines of one optimizer step; `facts` as in `stages.train.FACTS`."""
        if self._samples is None:
            return
        epoch = self._session.life.epoch
        name = partition_name(rollout_id)
        per_group = self._samples_per_prompt
        self._samples.append(
            [
                TrainedSample(
                    name,
                    int(group),
                    int(row) % per_group,
                    int(oldest),
                    rollout_id,
                    epoch,
                    pass_index,
                    reward,
                    bool(valid),
                )
                for row, group, oldest, reward, _, valid, *_ in torch.cat(list(facts)).tolist()
            ]
        )

    def keep_generations(self, rollout_id: RolloutId, part: TrainingSlice) -> None:
        """Keeps the texts of some of its own rows."""
        if self._generations is not None:
            self._generations.add(rollout_id, self._session.life.epoch, part.index, part.batch)

    def sync_samples(self) -> None:
        """Makes the audit lines durable that were logged so far."""
        if self._samples is not None:
            self._samples.sync()

    def report(self, rollout_id: RolloutId, summary: RolloutSummary) -> None:
        """Tells of the trained step, whose version is published."""
        now = time.monotonic()
        seconds, self._step_began = now - self._step_began, now
        report = StepReport(
            life=self._session.life,
            step=rollout_id,
            version=WeightVersion(rollout_id + 1),
            reward=summary.reward,
            loss=summary.loss,
            metrics=dict(summary.metrics),
            staleness=rollout_id - summary.oldest_version,
            samples=summary.samples,
            tokens=summary.tokens,
            seconds=seconds,
        )
        self._session.report_step(report)
