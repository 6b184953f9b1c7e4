"""How the experts of a model are balanced in training (`spec.training.experts`): fields, and rules with the job.

Anyone may import it. `rljob_api.model_files.parallel_layout` says of a folder's model whether it has experts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from pydantic import Field

from rljob_api.base import ApiModel
from rljob_api.roles import LEADING_ROLE, VALUE_ROLE, field_name
from rljob_api.rule import Rule

if TYPE_CHECKING:
    from rljob_api.spec import RLJobSpec


class Balancing(StrEnum):
    """Over which tokens the load of experts shall be even. AuxLoss: those of a micro-batch. SeqAuxLoss: of a sample."""

    AUX_LOSS = "AuxLoss"
    SEQ_AUX_LOSS = "SeqAuxLoss"


class ExpertsSpec(ApiModel):
    """Terms that are added to the loss of models with experts, so that their routers use all of them."""

    balancing: Balancing = Balancing.AUX_LOSS
    """Over which tokens the load of experts shall be even. AuxLoss: those of a micro-batch, prompts and responses
    together: the fewer it has, the stricter. SeqAuxLoss: those of each sample, which is stricter, and the same however
    samples are cut into micro-batches."""
    aux_loss_coefficient: float | None = Field(default=None, ge=0, le=1000)
    """Coefficient of the balancing loss, which is 1 where the experts of a layer are used evenly, added for each layer
    (moe_aux_loss_coeff of Megatron). Null: 0."""
    z_loss_coefficient: float | None = Field(default=None, ge=0, le=1000)
    """Coefficient of the mean square of log-sum-exp of a router's logits, which keeps them small (moe_z_loss_coeff of
    Megatron), added for each layer. Null: 0."""


_ACTOR = f"self.roles.{field_name(LEADING_ROLE)}"


_CRITIC = f"self.roles.{field_name(VALUE_ROLE)}"


def _are_laid_out(job: RLJobSpec) -> bool:
    trained = [role for role in (LEADING_ROLE, VALUE_ROLE) if job.roles.of(role) is not None]
    return all(job.backend_of(role) == "Megatron" for role in trained)


EXPERTS: tuple[Rule, ...] = (
    Rule(
        field="training.experts",
        holds=lambda job: job.training.experts is None or _are_laid_out(job),
        sentence="needs the backend Megatron for every role that trains, and this job has another, which does not "
        "balance experts. Set backend to Megatron or leave experts out.",
        cel=f"!has(self.training.experts) || (has({_ACTOR}.backend) && {_ACTOR}.backend == 'Megatron' && "
        f"(!has({_CRITIC}) || !has({_CRITIC}.backend) || {_CRITIC}.backend == 'Megatron'))",
    ),
    Rule(
        field="training.experts",
        holds=lambda job: job.training.experts is None or job.model.config is None,
        sentence="needs a model with experts, and that of model.config has none. Leave experts out, or give "
        "model.path.",
        cel="!has(self.training.experts) || !has(self.model.config)",
    ),
)
"""Rules of the whole job."""
