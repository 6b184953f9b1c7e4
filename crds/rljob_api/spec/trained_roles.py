"""Rules between the roles that train and the rest of the job: ranks and batches, the critic and what reads its values.

For the spec, which puts all rules between parts together. Rules of one role alone are in `rljob_api.spec.roles`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_api.engines import SIMULATED_ENGINE
from rljob_api.roles import SAVING_ROLES, field_name
from rljob_api.rule import Derived, Rule
from rljob_api.spec.advantages import ADVANTAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from rljob_api.names import Role
    from rljob_api.spec import RLJobSpec

NO_GPUS = "(has({0}.gpus) ? {0}.gpus : 0)"
"""The API server fills in no `gpus`: what is not given is resolved (`open_defaults`)."""


ENGINE_IS_SIM = (
    "(has(self.roles) && has(self.roles.rollout) && has(self.roles.rollout.engine) && "
    f"has(self.roles.rollout.engine.kind) && self.roles.rollout.engine.kind == '{SIMULATED_ENGINE}')"
)


RANKS_PER_MODEL = (
    "(has({0}.parallelism) ? {0}.parallelism.tensor * {0}.parallelism.pipeline * {0}.parallelism.context : 1)"
)
"""Ranks that hold one model of a role that trains, in CEL."""


_SLICES = "(has(self.training.itersPerTrainUpdate) ? self.training.itersPerTrainUpdate : 1)"
"""A number that is not given is resolved (`open_defaults`) to one that keeps these rules wherever 1 does."""


def _slices_reach(role: Role) -> Callable[[RLJobSpec], bool]:
    def holds(job: RLJobSpec) -> bool:
        slices, batch = job.training.iters_per_train_update, job.training.global_batch_size
        models = job.roles.topology(role).models
        # Where slices do not divide the batch a rule of its own says so.
        return not models or batch % slices != 0 or batch % (slices * models) == 0

    return holds


def _groups_reach(role: Role) -> Callable[[RLJobSpec], bool]:
    def holds(job: RLJobSpec) -> bool:
        training = job.training
        shares = training.iters_per_train_update * job.roles.topology(role).models
        if training.claim_policy != "Group" or not shares or training.global_batch_size % shares:
            return True  # rules of their own say that rows do not reach all models
        return training.global_batch_size % (shares * job.rollout.samples_per_prompt) == 0

    return holds


def _even_batches(role: Role) -> tuple[Rule, Rule]:
    """The rows of a slice go evenly to the models of a role that trains, which are data-parallel."""
    field = f"roles.{field_name(role)}"
    above = f"self.{field}"
    gpus = NO_GPUS.format(above)
    # As `rljob_api.roles` has it.
    per_pod = f"(has({above}.ranksPerPod) ? {above}.ranksPerPod : ({gpus} > 1 ? {gpus} : 1))"
    per_model = RANKS_PER_MODEL.format(above)
    ranks = f"{above}.replicas * {per_pod}"
    models = f"({ranks} / {per_model})"
    derived = {
        "slices": Derived(lambda job: job.training.iters_per_train_update, _SLICES),
        "models": Derived(lambda job: job.roles.topology(role).models, models),
        "trainersPerPod": Derived(lambda job: job.roles.topology(role).ranks_per_pod, per_pod),
        "ranksPerModel": Derived(lambda job: job.roles.topology(role).shards, per_model),
    }
    text = (
        f"{{models}} models of the {field_name(role)} ({{{field}.replicas}} replicas x {{trainersPerPod}} ranks per "
        "pod / {ranksPerModel} ranks per model)"
    )
    absent = f"!has({above}) || {ranks} < {per_model} || "
    return (
        Rule(
            field="training.itersPerTrainUpdate",
            holds=_slices_reach(role),
            sentence="{slices} slices of training.globalBatchSize {training.globalBatchSize} do not "
            f"go evenly to {text}. Give a divisor of globalBatchSize / models.",
            cel=f"{absent}self.training.globalBatchSize % {_SLICES} != 0 || "
            f"self.training.globalBatchSize % ({_SLICES} * {models}) == 0",
            derived=derived,
        ),
        Rule(
            field="training.claimPolicy",
            holds=_groups_reach(role),
            sentence="{training.claimPolicy} cannot give whole groups of {rollout.samplesPerPrompt} samples to "
            f"{text} in {{slices}} slices of training.globalBatchSize "
            "{training.globalBatchSize}. Give a global batch that is a multiple of their product, or Balanced.",
            cel=f"{absent}self.training.claimPolicy != 'Group' || self.training.globalBatchSize % "
            f"({_SLICES} * {models}) != 0 || self.training.globalBatchSize % "
            f"({_SLICES} * {models} * self.rollout.samplesPerPrompt) == 0",
            derived=derived,
        ),
    )


RANKS: tuple[Rule, ...] = (
    Rule(
        field="training.itersPerTrainUpdate",
        holds=lambda job: job.training.global_batch_size % job.training.iters_per_train_update == 0,
        sentence="{training.itersPerTrainUpdate} does not divide training.globalBatchSize {training.globalBatchSize}. "
        "Give a divisor of it.",
        cel=f"self.training.globalBatchSize % {_SLICES} == 0",
    ),
    *(rule for role in SAVING_ROLES for rule in _even_batches(role)),
)


_WITH_VALUES = f"[{', '.join(repr(str(name)) for name, traits in ADVANTAGES.items() if traits.needs_values)}]"


CRITIC: tuple[Rule, ...] = (
    Rule(
        field="roles.critic",
        holds=lambda job: job.roles.critic is None or job.algorithm.advantage_traits.needs_values,
        sentence="is a role whose values algorithm.advantage {algorithm.advantage} does not read. Set advantage to "
        "Gae, or remove roles.critic.",
        cel=f"!has(self.roles.critic) || self.algorithm.advantage in {_WITH_VALUES}",
    ),
    Rule(
        field="algorithm.advantage",
        holds=lambda job: job.roles.critic is not None or not job.algorithm.advantage_traits.needs_values,
        sentence="{algorithm.advantage} needs the role critic, which is absent. Add roles.critic (as {} for one "
        "replica), or choose another advantage.",
        cel=f"has(self.roles.critic) || !(self.algorithm.advantage in {_WITH_VALUES})",
    ),
    Rule(
        field="training.criticOnlySteps",
        holds=lambda job: job.training.critic_only_steps is None or job.roles.critic is not None,
        sentence="{training.criticOnlySteps} needs the role critic, which is absent. Add roles.critic, or remove "
        "criticOnlySteps.",
        cel="!has(self.training.criticOnlySteps) || has(self.roles.critic)",
    ),
    Rule(
        field="roles.critic.modelPath",
        holds=lambda job: (
            job.roles.critic is None or job.roles.critic.model_path is None or job.trainer_backend != "Sim"
        ),
        sentence="{roles.critic.modelPath} is not read by a simulated job. Remove it.",
        cel=f"!has(self.roles.critic) || !has(self.roles.critic.modelPath) || !{ENGINE_IS_SIM}",
    ),
)
