"""How much memory of its device a rank of the backend Megatron needs, by formula; the other backends are in `memory`.

With T tensor, P pipeline, C context, E expert and F expert-tensor ranks of W, c bytes of a computed element, h the
hidden width, N tokens in a micro-batch and S those of responses, a rank has of the model

    D = (layers / P) (layer - experts) / T + ends     of what all tokens go through
    X = (layers / P) experts / (E F)                  of experts

where `ends` are ceil(vocabulary / T) h for the embedding, on the first stage, and as much for the head, with the last
norm, on the last one: a tied head counts once where one stage has both, and is a copy where the last stage is another.
A critic's head is h. Norms and routers, below a hundredth, count as cut.

    weights        c (D + X)
    gradients      4 (D + X)                          float32, added up over micro-batches
    optimizer      s D T P / W + s X E F P / W        its shard: of ranks that have the same weights, each has a part;
                                                      s = 8 for Adam's moments, and 4 more where weights are not float32
    activations    those that are retained, and those in work, below

Tokens are cut over context ranks; of what tensor ranks compute each has its columns, and of what lies between, of the
width h, its tokens where `sequence` holds. A layer retains, for each token, 4 of the feed-forward width and of queries,
keys and values, cut by T, and 7 h, cut by T with `sequence`; where tokens go to k experts, 2 k h more, for what is sent
there and back, which lies even over the ranks as far as the router is balanced. With activationCheckpointing it retains
its input alone. With recomputeModules it does not retain what these give: CoreAttn one of the 4 of queries, keys and
values, Mlp and Moe the 4 of the feed-forward width and what is sent. A stage retains as many passes as are under way
(`rank_places`). In work is what a layer computes again, and 2 of the feed-forward and of the hidden width, or on the
last stage three times the logits in float32, of a chunk of 2^25 at most, cut by T.

Forward roles have weights alone; one pass, of 4 of the feed-forward and 3 of the hidden width, or the logits.

Nothing of this is measured. It leaves out buffers of exchanges, and gradients before they are added up.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rljob_api.machine.memory import (
    LOGIT_BYTES,
    LOGIT_CHUNK,
    LOGIT_COPIES,
    MASTER_BYTES,
    MOMENT_BYTES,
    Pass,
    ProcessMemory,
)
from rljob_api.model_files.size import ModelShape
from rljob_api.rank_places import passes_under_way
from rljob_api.spec.model import Dtype
from rljob_api.spec.parallelism import ParallelismSpec
from rljob_api.spec.training import RecomputedModule


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank's part of a model."""

    shape: ModelShape
    """The whole model's."""
    parallelism: ParallelismSpec
    stage: int
    """The rank's stage of the pipeline, from 0."""
    ranks: int
    """W: of the gang, over which state is sharded."""

    @property
    def layers(self) -> int:
        """On its stage."""
        return self.shape.num_layers // self.parallelism.pipeline

    @property
    def is_last(self) -> bool:
        """Whether it has the head."""
        return self.stage == self.parallelism.pipeline - 1

    @property
    def dense(self) -> int:
        """D: weights that all tokens go through."""
        of_layer = -(-(self.shape.layer - self.shape.experts) // self.parallelism.tensor)
        return self.layers * of_layer + self._ends

    @property
    def experts(self) -> int:
        """X: weights of experts."""
        return self.layers * -(-self.shape.experts // (self.parallelism.expert * self.parallelism.expert_tensor))

    @property
    def _ends(self) -> int:
        shape, tensor = self.shape, self.parallelism.tensor
        head = shape.vocabulary * shape.hidden
        is_tied = shape.outside < 2 * head
        embedding = shape.outside - shape.hidden - (0 if is_tied else head)
        embedding_rows, head_rows = (-(-size // shape.hidden // tensor) for size in (embedding, head))
        found = embedding_rows if self.stage == 0 else 0
        if self.is_last:
            found += 0 if is_tied and self.stage == 0 else head_rows
        return (found + self.is_last) * shape.hidden


def laid_out_trainer_memory(
    part: RankPart, dtype: Dtype, work: Pass, micro_batches: int, recomputed: Collection[RecomputedModule] = ()
) -> ProcessMemory:
    """Memory of a rank of a role that trains, which cuts a batch into so many micro-batches.

    `recomputed`: the parts of layers that are computed again, where whole layers are not.
    """
    own, weights = part.parallelism, part.dense + part.experts
    of_state = MOMENT_BYTES + (0 if dtype.num_bytes == MASTER_BYTES else MASTER_BYTES)
    dense_copies = part.ranks // (own.tensor * own.pipeline)
    expert_copies = part.ranks // (own.expert * own.expert_tensor * own.pipeline)
    whole = _retained_of_layer(part)
    again = _computed_again(part, recomputed)
    retained = whole - again
    if work.checkpointing:
        retained, again = _of_hidden(part, 1), whole
    passes = passes_under_way(part.stage, micro_batches, own)
    tokens = -(-work.tokens // own.context)
    working = dtype.num_bytes * tokens * (again + _of_columns(part, 2 * part.shape.inner) + _of_hidden(part, 2))
    return ProcessMemory(
        weights=dtype.num_bytes * weights,
        gradients=MASTER_BYTES * weights,
        optimizer=-(-of_state * part.dense // dense_copies) + -(-of_state * part.experts // expert_copies),
        activations=dtype.num_bytes * tokens * retained * passes * part.layers // own.virtual_pipeline
        + max(working, _logit_bytes(part, work)),
    )


def laid_out_forward_memory(part: RankPart, dtype: Dtype, work: Pass) -> ProcessMemory:
    """Memory of a rank that computes log-probs."""
    tokens = -(-work.tokens // part.parallelism.context)
    passing = dtype.num_bytes * tokens * (_of_columns(part, 4 * part.shape.inner) + _of_hidden(part, 3))
    return ProcessMemory(
        weights=dtype.num_bytes * (part.dense + part.experts),
        activations=max(passing, _logit_bytes(part, work)),
    )


def _retained_of_layer(part: RankPart) -> int:
    """Elements of a token."""
    shape = part.shape
    of_columns = _of_columns(part, 4 * shape.inner + 4 * (shape.queries + 2 * shape.keys))
    return of_columns + _of_hidden(part, 7) + _sent(part)


def _computed_again(part: RankPart, recomputed: Collection[RecomputedModule]) -> int:
    """Elements of a token that a layer does not retain, of those of `_retained_of_layer`."""
    shape, found = part.shape, 0
    if RecomputedModule.CORE_ATTN in recomputed:
        found += _of_columns(part, shape.queries + 2 * shape.keys)
    if {RecomputedModule.MLP, RecomputedModule.MOE} & set(recomputed):
        found += _of_columns(part, 4 * shape.inner) + _sent(part)
    return found


def _sent(part: RankPart) -> int:
    shape, own = part.shape, part.parallelism
    return -(-2 * shape.experts_per_token * shape.hidden * own.expert_tensor // own.tensor)


def _of_columns(part: RankPart, elements: int) -> int:
    return -(-elements // part.parallelism.tensor)


def _of_hidden(part: RankPart, times: int) -> int:
    cut = part.parallelism.tensor if part.parallelism.cuts_sequence else 1
    return -(-times * part.shape.hidden // cut)


def _logit_bytes(part: RankPart, work: Pass) -> int:
    if not part.is_last:
        return 0
    rows = -(-work.responses // part.parallelism.context)
    logits = min(rows * -(-part.shape.vocabulary // part.parallelism.tensor), LOGIT_CHUNK)
    return LOGIT_BYTES * LOGIT_COPIES * logits
