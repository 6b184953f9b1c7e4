"""What every rank of the actor publishes: its part of each version and of reference versions, and the probe.

    exports.begin(saves.weights)        the restored version, visible; `saves` has begun before
    exports.publish(saves.weights)      the version that `saves` has reached

Both are collectives: every rank calls them, in this order; one that has no part of something does nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedTokenizerBase

from rljob_api.failpoints import failpoint
from rljob_api.names import Stream, WeightVersion
from rljob_api.spec import RLJobSpec
from rljob_api.spec.restart import loading_seconds
from rljob_api.spec.weights import WeightVerification
from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import Probe
from rljob_workers.algorithms.objective import Output
from rljob_workers.dcs.checkpoints.store import CheckpointStore
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.dcs.weights.transport import WeightPublisher
from rljob_workers.models.building import described_config
from rljob_workers.models.weights import Buckets, Weights
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
    """What is published when."""

    ref_update_interval: int | None
    """k: every k-th version becomes a reference version. None: version 0 alone."""
    serves_reference: bool
    """Whether a role follows the stream of reference versions."""
    timeout_seconds: float

    @classmethod
    def of(cls, spec: RLJobSpec) -> ExportConfig:
        """Of a job."""
        return cls(
            ref_update_interval=spec.training.ref_update_interval,
            serves_reference=spec.roles.reference is not None and not spec.has_teacher,
            timeout_seconds=float(spec.weight_sync.timeout_seconds),
        )


class Exports:
    """One rank's parts of the versions that the actor reaches."""

    def __init__(
        self,
        config: ExportConfig,
        session: RankSession,
        publisher: WeightPublisher,
        checkpoints: CheckpointStore,
        timeline: Timeline,
        initial: Callable[[Collection[str]], Mapping[str, torch.Tensor]],
        probe: Callable[[], Probe | None] | None,
    ) -> None:
        """`initial` makes tensors of version 0 again.

        `probe` computes what engines must answer under the weights, a collective; None: engines are not verified.
        """
        self._config = config
        self._session = session
        self._publisher = publisher
        self._checkpoints = checkpoints
        self._timeline = timeline
        self._initial = initial
        self._probe = probe

    def begin(self, weights: Weights[Buckets]) -> None:
        """Makes the restored version visible; the first ticket waits for it."""
        if self._config.serves_reference:
            self._publish_reference(weights)
        self._publish_policy(weights)

    def publish(self, weights: Weights[Buckets]) -> None:
        """This rank's part of the version reached; visible with all parts."""
        failpoint("publish.before")
        with self._timeline.span("publish", version=weights.id.version):
            if self._is_reference(weights.id.version):
                self._publish_reference(weights)
            self._publish_policy(weights)
        failpoint("publish.after")

    def _is_reference(self, version: WeightVersion) -> bool:
        interval = self._config.ref_update_interval
        return self._config.serves_reference and interval is not None and version % interval == 0

    def _publish_policy(self, weights: Weights[Buckets]) -> None:
        probe = None if self._probe is None else self._probe()
        self._publisher.publish(replace(weights, probe=probe), timeout_seconds=self._config.timeout_seconds)

    def _publish_reference(self, weights: Weights[Buckets]) -> None:
        """The version that rows of `train_version` are measured against; durable before anyone uses it."""
        own, share = weights.source.on_host(), weights.source.share
        if share is None:
            return
        interval = self._config.ref_update_interval
        version = WeightVersion(0 if interval is None else weights.id.version // interval * interval)
        with self._session.busy(f"keeping reference version {version}", self._reference_seconds(own)):
            tensors = self._reference(version, weights.id.version, own)
        reference = WeightId(lineage=weights.id.lineage, version=version)
        self._publisher.publish(
            Weights(reference, Stream.REFERENCE, Buckets.of_host(tensors, share)),
            timeout_seconds=self._config.timeout_seconds,
        )

    def _reference_seconds(self, own: Mapping[str, torch.Tensor]) -> float:
        """For this rank's part, which may be read, and written in the loop's own thread: no beat comes meanwhile."""
        num_bytes = sum(tensor.nbytes for tensor in own.values())
        return max(self._config.timeout_seconds, loading_seconds(2 * num_bytes))

    def _reference(
        self, version: WeightVersion, reached: WeightVersion, own: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        """This rank's part of a reference version, durable."""
        saved = self._checkpoints.reference_version
        if version == saved and version != reached:
            return self._checkpoints.restored_reference(version, own.keys())
        tensors = own if version == reached else self._initial_reference(version, reached, saved, own)
        self._checkpoints.keep_reference(version, tensors)
        return tensors

    def _initial_reference(
        self, version: WeightVersion, reached: WeightVersion, saved: int | None, own: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        if version == 0:
            return self._initial(own.keys())
        raise ValueError(
            f"training.refUpdateInterval: {self._config.ref_update_interval} measures train_{reached} against"
            f" version {version}, but the checkpoint of version {reached} has"
            f" {'no reference' if saved is None else f'reference version {saved}'}. Set refUpdateInterval and"
            " roles.reference back to what the run was started with, or start over with --fresh."
        )
