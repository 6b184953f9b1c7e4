"""What global rank 0 of the actor does beside training: audit, publish, report, save, in the order of the contract.

Audit lines of step s are durable before version s + 1 is published, and so before any record that contains s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from rljob_api.failpoints import failpoint
from rljob_api.names import RolloutId, WeightVersion, partition_name
from rljob_api.wire.identity import WeightId
from rljob_api.wire.ranks import StepReport
from rljob_api.wire.weights import Stream
from rljob_workers.dcs.checkpoints import CheckpointStore
from rljob_workers.dcs.session import RankSession
from rljob_workers.dcs.weights.base import WeightPublisher
from rljob_workers.roles.stages.train import RolloutSummary
from rljob_workers.telemetry.sample_log import SampleLog, TrainedSample
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.trainers.base import Trainer


@dataclass(frozen=True, slots=True)
class LeaderConfig:
    """What the leader must know of the job."""

    num_rollouts: int
    samples_per_prompt: int
    checkpoint_every: int
    ref_update_interval: int | None
    """k: every k-th version becomes a reference version. None: version 0 alone."""
    serves_reference: bool
    timeout_seconds: float


class Leader:
    """Global rank 0 of the actor."""

    def __init__(
        self,
        config: LeaderConfig,
        session: RankSession,
        trainer: Trainer,
        publisher: WeightPublisher,
        checkpoints: CheckpointStore,
        ticket_table: Callable[[], bytes],
        samples: SampleLog | None,
        timeline: Timeline,
        initial: Callable[[], Mapping[str, torch.Tensor]],
    ) -> None:
        """`samples` is None where the audit is off. `initial` makes version 0 again, as the model says it."""
        self._config = config
        self._session = session
        self._trainer = trainer
        self._publisher = publisher
        self._checkpoints = checkpoints
        self._ticket_table = ticket_table
        self._samples = samples
        self._timeline = timeline
        self._initial = initial
        self._version = session.welcome.restore.version
        self._saved: int | None = None
        self._step_began = time.monotonic()

    def begin(self) -> None:
        """Makes the restored (or materialised) version durable and visible; the first ticket waits for it."""
        restore = self._session.welcome.restore
        tensors = self._trainer.stage_weights()
        if restore.folder is None:
            with self._session.busy("saving version 0", self._config.timeout_seconds):
                self._save(tensors)
                self._checkpoints.wait()
        self._saved = self._version
        if self._config.serves_reference:
            self._publish_reference(tensors)
        self._publish_policy(tensors)
        self._step_began = time.monotonic()

    def log_samples(self, rollout_id: RolloutId, pass_index: int, facts: Sequence[torch.Tensor]) -> None:
        """Audit lines of one optimizer step; `facts` as in `stages.train.FACTS`."""
        if self._samples is None:
            return
        epoch = self._session.life.epoch
        name = partition_name(rollout_id)
        per_group = self._config.samples_per_prompt
        self._samples.append(
            [
                TrainedSample(
                    name, int(group), int(row) % per_group, int(oldest), rollout_id, epoch, pass_index, reward
                )
                for row, group, oldest, reward, _ in torch.cat(list(facts)).tolist()
            ]
        )

    def publish(self, rollout_id: RolloutId, summary: RolloutSummary) -> None:
        """After the last optimizer step on `train_r`: version r + 1, the step report, the checkpoint that is due."""
        if self._samples is not None:
            self._samples.sync()
        self._version = WeightVersion(rollout_id + 1)
        tensors = self._trainer.stage_weights()
        failpoint("publish.before")
        with self._timeline.span("publish", version=self._version):
            if self._is_reference_version():
                self._publish_reference(tensors)
            self._publish_policy(tensors)
        failpoint("publish.after")
        self._report(rollout_id, summary)
        if self._version % self._config.checkpoint_every == 0 or self._version == self._config.num_rollouts:
            self._save(tensors)

    def finish(self) -> None:
        """Saves the published version if it is not saved yet, and waits until it is recorded."""
        if self._saved != self._version:
            self._save(self._trainer.stage_weights())
        with self._session.busy("saving the last version", self._config.timeout_seconds):
            self._checkpoints.wait()

    def _weight(self) -> WeightId:
        return WeightId(lineage=self._session.welcome.restore.lineage, version=self._version)

    def _is_reference_version(self) -> bool:
        interval = self._config.ref_update_interval
        return self._config.serves_reference and interval is not None and self._version % interval == 0

    def _publish_policy(self, tensors: Mapping[str, torch.Tensor]) -> None:
        deadline = time.monotonic() + self._config.timeout_seconds
        self._publisher.publish(Stream.POLICY, self._weight(), tensors, deadline=deadline)

    def _publish_reference(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """The version that rows of `train_version` are measured against; durable before anyone uses it."""
        interval = self._config.ref_update_interval
        version = 0 if interval is None else self._version // interval * interval
        weight = WeightId(lineage=self._session.welcome.restore.lineage, version=WeightVersion(version))
        with self._session.busy(f"keeping reference version {version}", self._config.timeout_seconds):
            kept = self._checkpoints.keep_reference(version, self._new_reference(version, tensors))
        deadline = time.monotonic() + self._config.timeout_seconds
        self._publisher.publish(Stream.REFERENCE, weight, kept, deadline=deadline)

    def _new_reference(self, version: int, current: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor] | None:
        """The tensors of a reference version that is not kept yet; None for the one of the restored checkpoint."""
        if version == self._version:
            return current
        kept = self._checkpoints.reference_version
        if version == kept:
            return None
        if version == 0:
            return self._initial()
        raise ValueError(
            f"training.refUpdateInterval: {self._config.ref_update_interval} measures train_{self._version} against"
            f" version {version}, but the checkpoint of version {self._version} has"
            f" {'no reference' if kept is None else f'reference version {kept}'}. Set refUpdateInterval and"
            " roles.reference back to what the run was started with, or start over with --fresh."
        )

    def _report(self, rollout_id: RolloutId, summary: RolloutSummary) -> None:
        now = time.monotonic()
        seconds, self._step_began = now - self._step_began, now
        report = StepReport(
            life=self._session.life,
            step=rollout_id,
            version=self._version,
            reward=summary.reward,
            loss=summary.loss,
            metrics=dict(summary.metrics),
            staleness=rollout_id - summary.oldest_version,
            samples=summary.samples,
            tokens=summary.tokens,
            seconds=seconds,
        )
        self._session.report_step(report)

    def _save(self, tensors: Mapping[str, torch.Tensor]) -> None:
        with self._timeline.span("stage checkpoint", version=self._version):
            self._checkpoints.write(self._weight(), tensors, self._trainer.stage_state(), self._ticket_table())
        self._saved = self._version
