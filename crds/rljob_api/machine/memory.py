"""How much memory of its device a process of a job needs, by formula. Pure; `rljob run --dry-run` prints it.

With P parameters, of which R are in no layer (embedding, head, last norm) and L in the largest layer, W ranks that
share a model, c bytes of a computed element (4 in float32, 2 in bfloat16), N tokens in a micro-batch, S of them of
responses:

What is there all the time, exact but for the rounding of shards:

    backend          weights       gradients     Adam's moments
    Flat             4 P           4 P           8 P             float32 on every rank
    Fsdp             4 P / W       4 P / W       8 P / W         float32, each rank its rows of every tensor
    forward roles    c P / W       -             -               a whole model; with `shards` their rows of it
    torch engine     c P           -             -               and a tied head once more, turned round; a head
                                                                 of its own type (model.headDtype) in that
    SGLang           c P / T       -             -               on each of the T devices of an engine

Of the backend Megatron `parallel_memory` says it, and of its forward roles.

What a pass takes on top, as counted at the peak of a forward and backward pass:

- *copies* of weights. Flat computes on weights in c bytes: c P, where c is not 4. Fsdp gathers what is in no layer for
  the whole pass, and two layers at a time; gradients come out in c bytes and are summed over the ranks in float32:
  (2 c + 4) R + (3 c + 4) L; a sharded forward role gathers c R + 2 c L. The torch engine holds two versions while it
  goes from one to the next; SGLang writes the next into the last. What a float32 head widens of bfloat16 weights is a
  block of 2^25 elements at a time, in the place of logits that are rounded first.
- *activations*. A layer keeps, for its backward pass, e elements of each token: 4 of the feed-forward width (gate, up,
  activation, product), 7 of the hidden width (the residual stream, twice normed), 4 of queries, keys and values.
  Without checkpointing of activations all layers keep theirs; with it each keeps its input alone, and one at a time
  computes the rest again. What is in work beside that is t = 2 of the feed-forward and 2 of the hidden width, or, at
  the pass's other end, three times the logits in float32: of all response tokens with Flat, of a chunk of 2^25 with
  Fsdp.
  Without gradients nothing is kept: 4 of the feed-forward and 3 of the hidden width, or the logits.
  A critic is a model with a vocabulary of 1 (`critic_shape`): a value in the place of a token's logits. Its pass for
  values, without gradients, takes less than the one that trains.

Together: what is always there + copies + activations. Publications and checkpoints are copied to the host tensor by
tensor, when no activations are there, and add nothing to the peak.

Tests measure all of it on the CPU: what is always there exactly, the peak of a step within a factor of `WITHIN`. On a
GPU the kernels of attention keep less, and CUDA itself takes some hundred MiB of a device: nothing of that is in here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rljob_api.model_files.size import ModelShape
from rljob_api.spec.engine import EngineSpec
from rljob_api.spec.model import Dtype
from rljob_api.spec.roles import BACKENDS, TrainerBackend

WITHIN = 1.25
"""The formula's peak of a training step over a measured one on the CPU, and the other way round, is below this. It is
farthest off for a critic of the backend Flat, whose peak is 1.21 of a measured one: no logits outweigh its layers."""


MASTER_BYTES = 4
"""Bytes of a weight, or a gradient, in float32."""


MOMENT_BYTES = 8
"""Bytes of both moments of Adam."""


LOGIT_BYTES = 4
"""Bytes of one logit, in float32."""


LOGIT_COPIES = 3
"""Logits exist that often at one time, in float32, where log-probs are computed."""


LOGIT_CHUNK = 1 << 25
"""Logits that the chunked log-probs of Fsdp make at a time, as `rljob_workers.algorithms.log_probs` says."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The largest forward pass of a process."""

    tokens: int
    """N: of a micro-batch."""
    responses: int
    """S: those of them that are of responses."""
    checkpointing: bool = False
    """Whether layers keep their inputs alone."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes that one process holds on its device."""

    weights: int
    gradients: int = 0
    optimizer: int = 0
    copies: int = 0
    activations: int = 0

    @property
    def state(self) -> int:
        """There all the time."""
        return self.weights + self.gradients + self.optimizer

    @property
    def peak(self) -> int:
        """All that is there at one time."""
        return self.state + self.copies + self.activations

    @property
    def by_part(self) -> dict[str, int]:
        """Bytes of each part, and `peak`."""
        return {**asdict(self), "peak": self.peak}


def trainer_memory(shape: ModelShape, backend: TrainerBackend, dtype: Dtype, world: int, work: Pass) -> ProcessMemory:
    """Memory of rank 0 of a role that trains, which holds as much as any other."""
    traits = BACKENDS[backend]
    assert not traits.lays_out, "`parallel_memory` has its formula"
    if not traits.computes:
        return ProcessMemory(weights=0)
    if traits.shards:
        return _sharded(shape, dtype, world, work)
    c, parameters = dtype.num_bytes, shape.parameters
    return ProcessMemory(
        weights=MASTER_BYTES * parameters,
        gradients=MASTER_BYTES * parameters,
        optimizer=MOMENT_BYTES * parameters,
        copies=0 if c == MASTER_BYTES else c * parameters,
        activations=_training_activations(shape, c, work, work.responses * shape.vocabulary),
    )


def forward_memory(
    shape: ModelShape, backend: TrainerBackend, dtype: Dtype, work: Pass, shards: int = 1
) -> ProcessMemory:
    """Memory of a rank that computes log-probs, under a model that `shards` ranks hold."""
    if not BACKENDS[backend].computes:
        return ProcessMemory(weights=0)
    c = dtype.num_bytes
    logits = _logits(shape, backend, work)
    passing = c * work.tokens * (4 * shape.inner + 3 * shape.hidden)
    return ProcessMemory(
        weights=-(-c * shape.parameters // shards),
        copies=0 if shards == 1 else c * (shape.outside + 2 * shape.layer),
        activations=max(passing, LOGIT_BYTES * LOGIT_COPIES * logits),
    )


def engine_memory(shape: ModelShape, dtype: Dtype, head_dtype: Dtype, engine: EngineSpec) -> ProcessMemory:
    """Of an engine on each of its devices, without a single sample: what is left may hold keys and values."""
    if not engine.traits.computes:
        return ProcessMemory(weights=0)
    if engine.traits.loads_in_place:
        return ProcessMemory(weights=-(-dtype.num_bytes * shape.parameters // engine.tensor_parallel))
    head = shape.vocabulary * shape.hidden
    is_tied = shape.outside < 2 * head
    rest = shape.parameters - (0 if is_tied else head)
    weights = dtype.num_bytes * rest + head_dtype.num_bytes * head
    return ProcessMemory(weights=weights, copies=weights)


def kv_bytes_per_token(shape: ModelShape, dtype: Dtype, share: int = 1) -> int:
    """Keys and values of one token in all layers, on each of the `share` devices of an engine, heads dealt evenly."""
    return 2 * shape.num_layers * -(-shape.keys // share) * dtype.num_bytes


def _sharded(shape: ModelShape, dtype: Dtype, world: int, work: Pass) -> ProcessMemory:
    c, own = dtype.num_bytes, -(-shape.parameters // world)
    return ProcessMemory(
        weights=MASTER_BYTES * own,
        gradients=MASTER_BYTES * own,
        optimizer=MOMENT_BYTES * own,
        copies=(2 * c + MASTER_BYTES) * shape.outside + (3 * c + MASTER_BYTES) * shape.layer,
        activations=_training_activations(shape, c, work, min(work.responses * shape.vocabulary, LOGIT_CHUNK)),
    )


def _logits(shape: ModelShape, backend: TrainerBackend, work: Pass) -> int:
    """Logits that exist at a time."""
    everything = work.responses * shape.vocabulary
    return min(everything, LOGIT_CHUNK) if BACKENDS[backend].chunks_logits else everything


def _training_activations(shape: ModelShape, c: int, work: Pass, logits: int) -> int:
    layer = _retained_of_layer(shape)
    retained, again = (shape.hidden, layer) if work.checkpointing else (layer, 0)
    working = c * work.tokens * (again + _in_work(shape))
    return c * work.tokens * shape.num_layers * retained + max(working, LOGIT_BYTES * LOGIT_COPIES * logits)


def _retained_of_layer(shape: ModelShape) -> int:
    """e: elements of a token."""
    return 4 * shape.inner + 7 * shape.hidden + 4 * (shape.queries + 2 * shape.keys)


def _in_work(shape: ModelShape) -> int:
    """t: elements of a token."""
    return 2 * shape.inner + 2 * shape.hidden
