"""How the ranks of a role share one model (`spec.roles.<role>.parallelism`): fields and numbers that follow from them.

Anyone may import it. Rules with the rest of a role are in `rljob_api.spec.roles`; what a model's own sizes allow is in
`rljob_api.model_files.parallel_layout`.
"""

from __future__ import annotations

from pydantic import Field

from rljob_api.rule import RuledModel


class ParallelismSpec(RuledModel):
    """How ranks share a model: tensor x pipeline x context of them hold one together.

    The role has as many models as that number goes into its ranks, and they are data-parallel.
    """

    tensor: int = Field(default=1, ge=1, le=64)
    """Ranks over which the matrices of each layer, its heads and the vocabulary are cut. They exchange activations
    twice in each layer: keep them within a node."""
    sequence: bool | None = None
    """Whether tokens between the matrices of a layer are cut over the tensor ranks, which saves activations. Null:
    where tensor is above 1."""
    pipeline: int = Field(default=1, ge=1, le=128)
    """Stages, each with an equal share of the layers, through which micro-batches pass one after the other."""
    virtual_pipeline: int = Field(default=1, ge=1, le=64)
    """Pieces of layers on each stage, for less idle time at both ends of a step, and more exchanges."""
    context: int = Field(default=1, ge=1, le=64)
    """Ranks over which the tokens of each sample are cut, for samples that one rank cannot hold."""
    expert: int = Field(default=1, ge=1, le=1024)
    """Ranks over which the experts of each layer are dealt. They are taken from those of tensor, context and data
    parallelism, of one pipeline stage: no ranks are added."""
    expert_tensor: int = Field(default=1, ge=1, le=64)
    """Ranks over which the matrices of each expert are cut, beside those of expert."""

    @property
    def ranks_per_model(self) -> int:
        """Ranks that hold one model together."""
        return self.tensor * self.pipeline * self.context

    @property
    def cuts_sequence(self) -> bool:
        """`sequence` as given or by default."""
        return self.tensor > 1 if self.sequence is None else self.sequence

    @property
    def row_multiple(self) -> int:
        """A row of packed samples is padded to a multiple of so many tokens.

        Context parallelism gives each rank two pieces of every row, one from either end, so that each has as much to
        attend to; a cut sequence has as many tokens on each tensor rank.
        """
        return (self.tensor if self.cuts_sequence else 1) * (2 * self.context if self.context > 1 else 1)


WHOLE = ParallelismSpec()
"""Of a role that gives none: every rank has a whole model."""
