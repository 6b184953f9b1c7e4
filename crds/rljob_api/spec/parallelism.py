"""How the ranks of a role share one model (`spec.roles.<role>.parallelism`): fields, and rules with the role's ranks.

Anyone may import it. Rules with backends and with a model of random weights are in `rljob_api.spec.laid_out_roles`;
what the files of a model allow is in `rljob_api.model_files.parallel_layout`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from rljob_api.rule import Derived, Rule, RuledModel

if TYPE_CHECKING:
    from rljob_api.spec.roles import ForwardRoleSpec, ModelRoleSpec

GPUS = "(has(self.gpus) ? self.gpus : 0)"
"""A role's devices in CEL."""


RANKS_OF_POD = f"(has(self.ranksPerPod) ? self.ranksPerPod : ({GPUS} > 1 ? {GPUS} : 1))"
"""The same, as `RoleSpec.num_ranks_per_pod` has it."""


PARALLELISM: tuple[Rule, ...] = (
    Rule(
        field="sequence",
        holds=lambda own: own.tensor > 1 or not own.sequence,
        sentence="true needs tensor ranks, over which tokens are cut, and tensor is {tensor}. Set tensor to at least 2 "
        "or leave sequence out.",
        cel="self.tensor > 1 || !has(self.sequence) || !self.sequence",
    ),
    Rule(
        field="sequence",
        holds=lambda own: own.expert == 1 or own.tensor == 1 or own.sequence is not False,
        sentence="false has each of the tensor ranks ({tensor}) send all tokens to the experts, which expert {expert} "
        "deals over ranks, so that each token would come {tensor} times. Leave sequence out, or set tensor or expert "
        "to 1.",
        cel="self.expert == 1 || self.tensor == 1 || !has(self.sequence) || self.sequence",
    ),
    Rule(
        field="virtualPipeline",
        holds=lambda own: own.virtual_pipeline == 1 or own.pipeline > 1,
        sentence="{virtualPipeline} pieces on each stage need stages, and pipeline is {pipeline}. Set pipeline to at "
        "least 2 or leave virtualPipeline out.",
        cel="self.virtualPipeline == 1 || self.pipeline > 1",
    ),
)


class ParallelismSpec(RuledModel):
    """How ranks share a model: tensor x pipeline x context of them hold one together.

    The role has as many models as that number goes into its ranks, and they are data-parallel.
    """

    rules = PARALLELISM

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
"""The layout of a role that gives none: every rank has a whole model."""


_PER_MODEL = "self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.context"


_OF_EXPERTS = "self.parallelism.expert * self.parallelism.expertTensor * self.parallelism.pipeline"


_RANKS = f"self.replicas * {RANKS_OF_POD}"


def _num_ranks(role: ModelRoleSpec) -> int:
    return role.replicas * role.num_ranks_per_pod


def _experts_fit(role: ModelRoleSpec, ranks: int) -> bool:
    own = role.parallelism
    return own is None or ranks % (own.expert * own.expert_tensor * own.pipeline) == 0


def _models_lie_on_pods(role: ForwardRoleSpec) -> bool:
    ranks, share = role.num_ranks_per_pod, 1 if role.parallelism is None else role.parallelism.ranks_per_model
    return ranks % share == 0 or (share % ranks == 0 and _num_ranks(role) % share == 0)


_PRODUCT = (
    "tensor {parallelism.tensor} x pipeline {parallelism.pipeline} x context {parallelism.context} are {ranksOfModel} "
    "ranks for each model"
)


_EXPERTS = (
    "{parallelism.expert} x expertTensor {parallelism.expertTensor} x pipeline {parallelism.pipeline} does not divide "
)


_DERIVED = {
    "ranksOfModel": Derived(lambda role: role.parallelism.ranks_per_model, _PER_MODEL),
    "ranksOfPod": Derived(lambda role: role.num_ranks_per_pod, RANKS_OF_POD),
    "ranksOfRole": Derived(_num_ranks, _RANKS),
}


OF_GANG: tuple[Rule, ...] = (
    Rule(
        field="parallelism",
        holds=lambda role: _num_ranks(role) % role.ranks_per_model == 0,
        sentence=f"{_PRODUCT}, which do not divide the {{ranksOfRole}} ranks of the role ({{replicas}} pods with "
        "{ranksOfPod} each). Give numbers whose product divides them, or change the ranks.",
        cel=f"!has(self.parallelism) || {_RANKS} % ({_PER_MODEL}) == 0",
        derived=_DERIVED,
    ),
    Rule(
        field="parallelism.expert",
        holds=lambda role: _experts_fit(role, _num_ranks(role)),
        sentence=f"{_EXPERTS}the {{ranksOfRole}} ranks of the role ({{replicas}} pods with {{ranksOfPod}} each). Give "
        "numbers whose product divides them, or change the ranks.",
        cel=f"!has(self.parallelism) || {_RANKS} % ({_OF_EXPERTS}) == 0",
        derived=_DERIVED,
    ),
)
"""Rules of a role that trains: all its ranks are in one gang."""


OF_FORWARD: tuple[Rule, ...] = (
    Rule(
        field="parallelism",
        holds=_models_lie_on_pods,
        sentence=f"{_PRODUCT} and leave ranks over: {{replicas}} pods have {{ranksOfPod}} each, and a model lies "
        "within a pod or on whole pods. Give a divisor of a pod's ranks, or a multiple of them that divides the ranks "
        "of all pods.",
        cel=f"!has(self.parallelism) || {RANKS_OF_POD} % ({_PER_MODEL}) == 0 || "
        f"(({_PER_MODEL}) % {RANKS_OF_POD} == 0 && {_RANKS} % ({_PER_MODEL}) == 0)",
        derived=_DERIVED,
    ),
    Rule(
        field="parallelism.expert",
        holds=lambda role: role.parallelism is None or _experts_fit(role, role.parallelism.ranks_per_model),
        sentence=f"{_EXPERTS}the {{ranksOfModel}} ranks of a model (tensor {{parallelism.tensor}} x pipeline x context "
        "{parallelism.context}), and each model of this role computes for itself. Give numbers whose product divides "
        "them.",
        cel=f"!has(self.parallelism) || ({_PER_MODEL}) % ({_OF_EXPERTS}) == 0",
        derived=_DERIVED,
    ),
)
"""Rules of a role that computes log-probs: the ranks of a model are a gang, and exchange nothing with another's."""
