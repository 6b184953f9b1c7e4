"""A rank's part of the checkpoints of its gang: version 0, versions that are due, and the last one.

    saves.begin()              the restored version; version 0 is saved before any ticket is given
    saves.reach(version)       after the last optimizer step on train_{version - 1}
    saves.save_if_due()        begins to save; returns before it is recorded
    saves.finish()             the version reached is recorded

All are collectives: every rank of a gang that trains calls them, in this order. Gangs of several roles save the same
versions, each its part of one record (`dcs.checkpoints`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from rljob_api.metric_names import is_of_evaluations
from rljob_api.model_files.size import checkpoint_bytes, checkpoint_interval
from rljob_api.names import Stream, WeightVersion
from rljob_api.spec import RLJobSpec
from rljob_api.spec.evaluation import EvaluationSpec
from rljob_api.spec.model import Dtype
from rljob_api.spec.restart import loading_seconds
from rljob_api.wire.identity import WeightId
from rljob_workers.dcs.checkpoints.store import CheckpointStore
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.models.weights import Buckets, Weights
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.trainers.base import Trainer


@dataclass(frozen=True, slots=True)
class SaveConfig:
    """What is saved when."""

    num_rollouts: int
    checkpoint_every: int
    keep_every: int | None
    """Versions that are multiples of it are saved as well."""
    timeout_seconds: float
    evaluation: EvaluationSpec | None = None
    """Versions that it evaluates are saved as well. None also where keepBest does not go by what it finds."""

    @classmethod
    def of(cls, spec: RLJobSpec) -> SaveConfig:
        """Of a job; the same for every role of it."""
        best = spec.checkpoint.keep_best
        return cls(
            num_rollouts=spec.rollout.num_rollouts,
            checkpoint_every=checkpoint_interval(spec),
            keep_every=spec.checkpoint.keep_every,
            evaluation=spec.evaluation if best is not None and is_of_evaluations(best.metric) else None,
            timeout_seconds=float(spec.weight_sync.timeout_seconds),
        )


class Saves:
    """One rank's parts of the checkpoints of the versions that its gang reaches."""

    def __init__(
        self,
        config: SaveConfig,
        session: RankSession,
        trainer: Trainer,
        checkpoints: CheckpointStore,
        tickets: Callable[[], bytes] | None,
        timeline: Timeline,
    ) -> None:
        """`tickets` gives the queue's ticket table, on the rank that leads all; None on the others."""
        self._config = config
        self._session = session
        self._trainer = trainer
        self._checkpoints = checkpoints
        self._tickets = tickets
        self._timeline = timeline
        self._saved: int | None = None
        self.version = session.welcome.restore.version
        """The one reached."""
        self._exported = self._export()
        self._num_parameters = 0
        """Of this rank's part."""

    @property
    def weights(self) -> Weights[Buckets]:
        """The version reached, in this epoch's lineage."""
        weight = WeightId(lineage=self._session.welcome.restore.lineage, version=self.version)
        return Weights(weight, Stream.POLICY, self._exported)

    def begin(self) -> None:
        """Saves version 0, where the job begins with it, and waits for the record."""
        self._num_parameters = sum(tensor.numel() for tensor in self._exported.on_host().values())
        if self._session.welcome.restore.folder is None:
            with self._session.busy("saving version 0", self._saving_seconds()):
                self._save()
                self._checkpoints.wait()
        self._saved = self.version

    def reach(self, version: WeightVersion) -> None:
        """The trainer's weights of now are this version. They are exported before the next optimizer step, or not."""
        self.version = version
        self._exported = self._export()

    def name(self, version: WeightVersion) -> None:
        """The weights of the version before have this number, too: nothing was trained."""
        self.version = version

    @property
    def is_due(self) -> bool:
        """Whether the job's intervals ask for the version reached to be saved."""
        intervals = (self._config.checkpoint_every, self._config.keep_every)
        is_due = any(interval is not None and self.version % interval == 0 for interval in intervals)
        evaluation, count = self._config.evaluation, self._config.num_rollouts
        is_candidate = evaluation is not None and evaluation.is_due(self.version, count)
        return is_due or is_candidate or self.version == count

    def save_if_due(self) -> None:
        """Begins to save the version reached; returns before it is recorded.

        Announced to a drain, which gives up what has not saved: the checkpoint before it is waited for. Not announced
        otherwise, since a rank that is stopped while it is busy is found late.
        """
        if self.is_due:
            session = self._session
            saving = session.busy(f"saving version {self.version}", self._saving_seconds())
            with saving if session.draining else nullcontext():
                self._save()

    def finish(self) -> None:
        """Saves the version reached if it is not saved yet, and waits until it is recorded."""
        with self._session.busy("saving the last version", self._saving_seconds()):
            if self._saved != self.version:
                self._save()
            self._checkpoints.wait()

    def _save(self) -> None:
        with self._timeline.span("stage checkpoint", version=self.version):
            state = self._trainer.stage_state()
            tickets = None if self._tickets is None else self._tickets()
            self._checkpoints.write(self.weights.id, self._exported.on_host(), state, tickets)
        self._saved = self.version

    def _export(self) -> Buckets:
        return Buckets(self._trainer.weight_share, self._trainer.export, self._trainer.stage_weights)

    def _saving_seconds(self) -> float:
        """For this rank's part of a checkpoint, and of one before it that is not written yet."""
        num_bytes = checkpoint_bytes(self._num_parameters, Dtype.BFLOAT16)  # the larger one
        return max(self._config.timeout_seconds, loading_seconds(2 * num_bytes))
