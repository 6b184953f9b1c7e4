"""What every rank of the actor does with weights beside training: stage, publish, save its part, make the probe.

    exports.begin()                     the restored version, durable and visible
    exports.publish(rollout_id)         version r + 1
    exports.save_if_due()
    exports.finish()                    the published version is recorded

All are collectives: every rank calls them, in this order; one that has no part of something does nothing for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from rljob_api.failpoints import failpoint
from rljob_api.model_files.size import checkpoint_bytes, checkpoint_interval
from rljob_api.names import RolloutId, Stream, WeightVersion
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import Dtype
from rljob_api.spec.restart import loading_seconds
from rljob_api.spec.weights import WeightVerification
from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import Probe
from rljob_workers.algorithms.objective import Output
from rljob_workers.dcs.checkpoints.store import CheckpointStore
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.dcs.weights.transport import WeightPublisher
from rljob_workers.models.building import described_config
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import Trainer

NUM_TOKENS = 64


_STRIDE, _FIRST = 7919, 11
"""A prime beyond what vocabularies have as a factor: tokens from all over the vocabulary, none twice in a large one."""


def probe_tokens(vocabulary: int, positions: int) -> list[int]:
    """The same for every version of a model of `vocabulary` tokens: NUM_TOKENS, or half as many as it has positions.

    Servers let no prompt have all of them: SGLang keeps some for the output.
    """
    return [(_FIRST + place * _STRIDE) % vocabulary for place in range(min(NUM_TOKENS, positions // 2))]


class TrainerProbe:
    """The trainer's side. A collective, as all that computes with a trainer: every rank calls it."""

    def __init__(self, trainer: Trainer, tokens: Sequence[int]) -> None:
        self._trainer = trainer
        self._tokens = list(tokens)

    @classmethod
    def of(cls, spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, trainer: Trainer) -> TrainerProbe | None:
        """Of a job; None where its engines are not verified. The trainer does not know what engines can do."""
        if spec.weight_sync.verify is WeightVerification.NONE:
            return None
        described = described_config(spec.model, tokenizer)
        vocabulary = min(described.get("vocab_size", len(tokenizer)), len(tokenizer))
        return cls(trainer, probe_tokens(vocabulary, described.get("max_position_embeddings", NUM_TOKENS)))

    def __call__(self) -> Probe | None:
        """Log-probs of the tokens under the current weights; None where they are not finite and cannot be compared.

        The component that cannot use such weights reports them: an engine refuses them.
        """
        row = Jagged.from_rows([torch.tensor(self._tokens, dtype=torch.int32)])
        lengths = torch.tensor([len(self._tokens) - 1])
        found = self._trainer.score(row, lengths, Output.LOG_PROBS, 1.0, num_micro_batches=1)
        if not found.values.isfinite().all():
            return None
        return Probe(tokens=self._tokens, log_probs=found.values.tolist())


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """What is published and saved when."""

    num_rollouts: int
    checkpoint_every: int
    keep_every: int | None
    """Versions that are multiples of it are saved as well."""
    ref_update_interval: int | None
    """k: every k-th version becomes a reference version. None: version 0 alone."""
    serves_reference: bool
    timeout_seconds: float

    @classmethod
    def of(cls, spec: RLJobSpec) -> ExportConfig:
        """Of a job."""
        return cls(
            num_rollouts=spec.rollout.num_rollouts,
            checkpoint_every=checkpoint_interval(spec),
            keep_every=spec.checkpoint.keep_every,
            ref_update_interval=spec.training.ref_update_interval,
            serves_reference=spec.roles.reference is not None,
            timeout_seconds=float(spec.weight_sync.timeout_seconds),
        )


class Exports:
    """One rank's parts of the versions that the actor reaches."""

    def __init__(
        self,
        config: ExportConfig,
        session: RankSession,
        trainer: Trainer,
        publisher: WeightPublisher,
        checkpoints: CheckpointStore,
        tickets: Callable[[], bytes] | None,
        timeline: Timeline,
        initial: Callable[[Collection[str]], Mapping[str, torch.Tensor]],
        probe: Callable[[], Probe | None] | None,
    ) -> None:
        """`tickets` gives the queue's ticket table, on the leader. `initial` makes tensors of version 0 again.

        `probe` computes what engines must answer under the weights, a collective; None: engines are not verified.
        """
        self._config = config
        self._session = session
        self._trainer = trainer
        self._publisher = publisher
        self._checkpoints = checkpoints
        self._tickets = tickets
        self._timeline = timeline
        self._initial = initial
        self._probe = probe
        self._version = session.welcome.restore.version
        self._saved: int | None = None
        self._share = trainer.weight_share
        self._staged: Mapping[str, torch.Tensor] = {}
        """This rank's part of the version."""

    def begin(self) -> None:
        """Makes the restored (or materialised) version durable and visible; the first ticket waits for it."""
        self._staged = self._trainer.stage_weights()
        if self._session.welcome.restore.folder is None:
            with self._session.busy("saving version 0", self._saving_seconds()):
                self._save()
                self._checkpoints.wait()
        self._saved = self._version
        if self._config.serves_reference:
            self._publish_reference()
        self._publish_policy()

    def publish(self, rollout_id: RolloutId) -> None:
        """After the last optimizer step on `train_r`: this rank's part of version r + 1, visible with all parts."""
        self._version = WeightVersion(rollout_id + 1)
        self._staged = self._trainer.stage_weights()
        failpoint("publish.before")
        with self._timeline.span("publish", version=self._version):
            if self._is_reference_version():
                self._publish_reference()
            self._publish_policy()
        failpoint("publish.after")

    def save_if_due(self) -> None:
        """Begins to save the published version where the job's intervals ask for it; returns before it is recorded."""
        intervals = (self._config.checkpoint_every, self._config.keep_every)
        is_due = any(interval is not None and self._version % interval == 0 for interval in intervals)
        if is_due or self._version == self._config.num_rollouts:
            self._save()

    def finish(self) -> None:
        """Saves the published version if it is not saved yet, and waits until it is recorded."""
        with self._session.busy("saving the last version", self._saving_seconds()):
            if self._saved != self._version:
                self._staged = self._trainer.stage_weights()
                self._save()
            self._checkpoints.wait()

    def _save(self) -> None:
        with self._timeline.span("stage checkpoint", version=self._version):
            state = self._trainer.stage_state()
            tickets = None if self._tickets is None else self._tickets()
            self._checkpoints.write(self._weight(), self._staged, state, tickets)
        self._saved = self._version

    def _weight(self) -> WeightId:
        return WeightId(lineage=self._session.welcome.restore.lineage, version=self._version)

    def _is_reference_version(self) -> bool:
        interval = self._config.ref_update_interval
        return self._config.serves_reference and interval is not None and self._version % interval == 0

    def _publish_policy(self) -> None:
        probe = None if self._probe is None else self._probe()
        if self._share is not None:
            deadline = time.monotonic() + self._config.timeout_seconds
            self._publisher.publish(
                Stream.POLICY, self._weight(), self._staged, self._share, deadline=deadline, probe=probe
            )

    def _publish_reference(self) -> None:
        """The version that rows of `train_version` are measured against; durable before anyone uses it."""
        if self._share is None:
            return
        interval = self._config.ref_update_interval
        version = 0 if interval is None else self._version // interval * interval
        weight = WeightId(lineage=self._session.welcome.restore.lineage, version=WeightVersion(version))
        with self._session.busy(f"keeping reference version {version}", self._reference_seconds()):
            tensors = self._reference(version)
        deadline = time.monotonic() + self._config.timeout_seconds
        self._publisher.publish(Stream.REFERENCE, weight, tensors, self._share, deadline=deadline)

    def _saving_seconds(self) -> float:
        """For this rank's part of a checkpoint, and of one before it that is not written yet."""
        parameters = sum(tensor.numel() for tensor in self._staged.values())
        num_bytes = checkpoint_bytes(parameters, Dtype.BFLOAT16)  # the larger one
        return max(self._config.timeout_seconds, loading_seconds(2 * num_bytes))

    def _reference_seconds(self) -> float:
        """For this rank's part, which may be read, and written in the loop's own thread: no beat comes meanwhile."""
        num_bytes = sum(tensor.nbytes for tensor in self._staged.values())
        return max(self._config.timeout_seconds, loading_seconds(2 * num_bytes))

    def _reference(self, version: int) -> Mapping[str, torch.Tensor]:
        """This rank's part of a reference version, durable."""
        saved = self._checkpoints.reference_version
        if version == saved and version != self._version:
            return self._checkpoints.restored_reference(version, self._staged.keys())
        tensors = self._new_reference(version, saved)
        self._checkpoints.keep_reference(version, tensors)
        return tensors

    def _new_reference(self, version: int, saved: int | None) -> Mapping[str, torch.Tensor]:
        if version == self._version:
            return self._staged
        if version == 0:
            return self._initial(self._staged.keys())
        raise ValueError(
            f"training.refUpdateInterval: {self._config.ref_update_interval} measures train_{self._version} against"
            f" version {version}, but the checkpoint of version {self._version} has"
            f" {'no reference' if saved is None else f'reference version {saved}'}. Set refUpdateInterval and"
            " roles.reference back to what the run was started with, or start over with --fresh."
        )
