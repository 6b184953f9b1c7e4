"""What global rank 0 of the actor does beside its part of the work: audit and report.

Audit lines of step s are durable before version s + 1 is published, and so before any record that contains s.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from rljob_api.names import RolloutId, WeightVersion, partition_name
from rljob_api.wire.ranks import StepReport
from rljob_workers.dcs.session import RankSession
from rljob_workers.roles.stages.train import RolloutSummary
from rljob_workers.telemetry.sample_log import SampleLog, TrainedSample


class Leader:
    """Global rank 0 of the actor."""

    def __init__(self, session: RankSession, samples: SampleLog | None, samples_per_prompt: int) -> None:
        """`samples` is None where the audit is off."""
        self._session = session
        self._samples = samples
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
                    name, int(group), int(row) % per_group, int(oldest), rollout_id, epoch, pass_index, reward
                )
                for row, group, oldest, reward, _ in torch.cat(list(facts)).tolist()
            ]
        )

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
