"""A metric's values end a job (`spec.stopWhen`) or keep a checkpoint (`spec.checkpoint.keepBest`).

Fields and rules. Anyone may import it. What follows from values is decided in the coordinator
(`rljob_workers.dcs.coordinator.stop_condition`, `best_checkpoint`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field, StringConstraints

from rljob_api.base import ApiModel
from rljob_api.metric_names import (
    EVALUATION_PREFIX,
    OF_EVALUATIONS,
    OF_GREEDY_ANSWERS,
    OF_LOSSES,
    OF_REPORTS,
    OF_REWARDS,
    OF_ROLLOUT_FUNCTIONS,
    OF_STEPS,
    OF_USERS,
    Needs,
    is_of_evaluations,
    is_of_set,
    is_of_steps,
    names_that_need,
)
from rljob_api.roles import LEADING_ROLE, field_name
from rljob_api.rule import Rule, RuledModel
from rljob_api.spec.advantages import ADVANTAGES
from rljob_api.spec.set_defaults import data_of
from rljob_api.spec.trained_roles import ENGINE_IS_SIM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rljob_api.spec import RLJobSpec

MetricName = Annotated[str, StringConstraints(min_length=1, max_length=256)]


STOP_WHEN: tuple[Rule, ...] = (
    Rule(
        field="above",
        holds=lambda stop: (stop.above is None) != (stop.below is None),
        sentence="exactly one of above and below must be given. Give the bound that the metric must pass.",
        cel="has(self.above) != has(self.below)",
    ),
)


class StopWhenSpec(RuledModel):
    """When a job has reached what it is for, before its last rollout."""

    rules = STOP_WHEN

    metric: MetricName
    """A step's metric, by its name in metrics.jsonl (`reward`, `policy/entropy` ...), or an evaluation's
    (`eval/SET/mean@8` ...)."""
    above: float | None = Field(default=None, ge=-1e15, le=1e15)
    """It holds while the value is larger."""
    below: float | None = Field(default=None, ge=-1e15, le=1e15)
    """It holds while the value is smaller."""
    for_steps: int = Field(default=1, ge=1, le=1000)
    """In so many steps in a row; of an evaluation's metric, evaluations in a row. A value that is missing or no number
    ends the row."""


class BestMode(StrEnum):
    """Which of two values is the better one."""

    MAX = "Max"
    MIN = "Min"


class KeepBestSpec(ApiModel):
    """The checkpoint that is kept since no other has a better value."""

    metric: MetricName
    """As in stopWhen. Of an evaluation's metric every version that is evaluated is saved, whatever everySteps says; of
    a step's, versions that are saved compete with the value of the step that made them."""
    mode: BestMode = BestMode.MAX
    """Max: the larger value is the better one; Min: the smaller."""


_SAMPLES = "(has(each.samplesPerPrompt) ? each.samplesPerPrompt : 1)"
_K = "int(METRIC.substring(METRIC.lastIndexOf('@') + 1))"
"""The text behind the @. The API server takes string(k) for a text of any length, and refuses the rule."""
_NUMBER = "@[1-9][0-9]{0,3}$"
_HAS_SOURCES = (
    "(has(each.data.sourceKey) ? each.data.sourceKey != '' : has(self.data.sourceKey) && !has(each.data.reasoningGym))"
)
_OF_SET = f"({_HAS_SOURCES} || METRIC.lastIndexOf('/') == each.name.size() + {len(EVALUATION_PREFIX)})"
"""A set whose prompts name no sources has its own metrics alone."""
_NAMES_OF_SET = " || ".join(
    (
        *(f"METRIC.endsWith('/{name}')" for name in OF_EVALUATIONS),
        f"(METRIC.matches('/mean{_NUMBER}') && {_K} == {_SAMPLES})",
        f"(METRIC.matches('/std{_NUMBER}') && {_K} == {_SAMPLES} && {_SAMPLES} > 1)",
        f"(METRIC.matches('/pass{_NUMBER}') && "
        f"({_K} == {_SAMPLES} || ({_K} < {_SAMPLES} && {_K} in {[1 << power for power in range(13)]})))",
    )
)


_ACTOR = f"self.roles.{field_name(LEADING_ROLE)}"


class _Need(NamedTuple):
    """When a job has what a metric needs, and what is said where it has not."""

    holds: Callable[[RLJobSpec], bool]
    cel: str
    sentence: str
    """States the metric, and the cure."""


def _experts_add(job: RLJobSpec, name: str) -> bool:
    experts = job.training.experts
    return experts is not None and (getattr(experts, name) or 0) > 0


def _experts_add_cel(field: str) -> str:
    above = "self.training.experts"
    return f"has({above}) && has({above}.{field}) && {above}.{field} > 0.0"


_OTHER = "or give another metric."

_NEEDS: Mapping[Needs, _Need] = {
    Needs.COMPUTED: _Need(
        lambda job: job.roles.rollout.engine.traits.computes,
        f"!{ENGINE_IS_SIM}",
        "is computed with a model, and this job is simulated. Set roles.rollout.engine.kind to Torch or SGLang, "
        f"{_OTHER}",
    ),
    Needs.CRITIC: _Need(
        lambda job: job.roles.critic is not None,
        "has(self.roles.critic)",
        f"is of the role critic, which is absent. Add roles.critic, {_OTHER}",
    ),
    Needs.DYNAMIC_SAMPLING: _Need(
        lambda job: job.rollout.dynamic_sampling is not None,
        "has(self.rollout.dynamicSampling)",
        f"is of rollout.dynamicSampling, which is absent. Add it, {_OTHER}",
    ),
    Needs.SWAPPED_GROUPS: _Need(
        lambda job: job.rollout.order == "Swap",
        "has(self.rollout.order) && self.rollout.order == 'Swap'",
        f"is of groups that are exchanged, and rollout.order is Bound. Set it to Swap, {_OTHER}",
    ),
    Needs.SAMPLE_FILTER: _Need(
        lambda job: job.algorithm.sample_filter is not None,
        "has(self.algorithm.sampleFilter)",
        f"is of algorithm.sampleFilter, which is absent. Add it, {_OTHER}",
    ),
    Needs.CARRIED_GROUPS: _Need(
        lambda job: job.rollout.carries,
        "has(self.rollout.partial) && has(self.rollout.order) && self.rollout.order == 'Swap'",
        f"is of groups that are carried on. Set rollout.order to Swap and give rollout.partial, {_OTHER}",
    ),
    Needs.EARLIER_VERSIONS: _Need(
        lambda job: job.rollout.max_staleness > 0,
        "self.rollout.maxStaleness > 0",
        f"is of tokens of earlier versions, and rollout.maxStaleness 0 leaves none. Raise it, {_OTHER}",
    ),
    Needs.OWN_LOG_PROBS: _Need(
        lambda job: job.algorithm.proximal in (None, "Actor") and not job.has_one_optimizer_step,
        "(!has(self.algorithm.proximal) || self.algorithm.proximal == 'Actor') && (self.training.epochsPerRollout > 1 "
        "|| self.rollout.batchSize * self.rollout.samplesPerPrompt != self.training.globalBatchSize)",
        "is of log-probs that the actor computes before its first step, and this job has others: of its only step, or "
        f"by algorithm.proximal. Set proximal to Actor with several steps per rollout, {_OTHER}",
    ),
    Needs.KL_IN_REWARD: _Need(
        lambda job: job.algorithm.kl.is_in_reward,
        "self.algorithm.kl.coefficient > 0.0 && has(self.algorithm.kl.placement) && "
        "self.algorithm.kl.placement == 'Reward'",
        "is of a KL that is taken off rewards, and here none is. Set algorithm.kl.placement to Reward and coefficient "
        f"above 0, {_OTHER}",
    ),
    Needs.KL_IN_LOSS: _Need(
        lambda job: job.algorithm.kl.is_in_loss,
        "self.algorithm.kl.coefficient > 0.0 && (!has(self.algorithm.kl.placement) || "
        "self.algorithm.kl.placement != 'Reward')",
        "is of a KL term of the loss, which has none. Set algorithm.kl.coefficient above 0 and placement to Loss, "
        f"{_OTHER}",
    ),
    Needs.CORRECTION: _Need(
        lambda job: job.algorithm.correction.kind != "None" or job.algorithm.correction.mask is not None,
        "self.algorithm.correction.kind != 'None' || has(self.algorithm.correction.mask)",
        "is of a correction, and algorithm.correction has kind None and no mask. Set kind to Tis or another one, "
        f"{_OTHER}",
    ),
    Needs.EXPERTS: _Need(
        lambda job: job.model.config is None and job.backend_of(LEADING_ROLE) == "Megatron",
        f"!has(self.model.config) && has({_ACTOR}.backend) && {_ACTOR}.backend == 'Megatron'",
        "is of a model with experts that the backend Megatron trains. Set roles.actor.backend to Megatron and "
        f"model.path to such a model, {_OTHER}",
    ),
    Needs.AUX_LOSS: _Need(
        lambda job: _experts_add(job, "aux_loss_coefficient"),
        _experts_add_cel("auxLossCoefficient"),
        f"is of a loss that is not added. Set training.experts.auxLossCoefficient above 0, {_OTHER}",
    ),
    Needs.Z_LOSS: _Need(
        lambda job: _experts_add(job, "z_loss_coefficient"),
        _experts_add_cel("zLossCoefficient"),
        f"is of a loss that is not added. Set training.experts.zLossCoefficient above 0, {_OTHER}",
    ),
}


def _where_named(names: tuple[str, ...], need: _Need) -> Callable[[RLJobSpec, str], bool]:
    return lambda job, name: name not in names or need.holds(job)


_WITH_GREEDY = [str(name) for name, traits in ADVANTAGES.items() if traits.needs_greedy]


def _functions_may_name(job: RLJobSpec, name: str) -> bool:
    """Whether rollout functions, or greedy answers, may have it."""
    if job.rollout.function is not None:
        return True
    return name == OF_GREEDY_ANSWERS and job.algorithm.advantage_traits.needs_greedy


def _rewards_may_name(job: RLJobSpec, name: str) -> bool:
    """Whether the job's reward may have it: what its functions and servers say is known only to them."""
    reward, own = job.rollout.reward, name.removeprefix(OF_REWARDS)
    if job.rollout.function is not None or reward.custom is not None or reward.remote is not None:
        return True
    if (own == "overlong" and reward.overlong is not None) or (own == "shorter" and reward.shorter is not None):
        return True
    return any(
        own == each.name or ((each.custom or each.remote) is not None and own.startswith(f"{each.name}/"))
        for each in reward.sum or ()
    )


_OF_EVERY_REWARD = [name for name in OF_STEPS if name.startswith(OF_REWARDS)]


_REWARDS_MAY_NAME = (
    "has(self.rollout.function) || has(self.rollout.reward.custom) || has(self.rollout.reward.remote) || "
    f"(METRIC == '{OF_REWARDS}overlong' && has(self.rollout.reward.overlong)) || "
    f"(METRIC == '{OF_REWARDS}shorter' && has(self.rollout.reward.shorter)) || "
    f"(has(self.rollout.reward.sum) && self.rollout.reward.sum.exists(each, METRIC == '{OF_REWARDS}' + each.name || "
    f"((has(each.custom) || has(each.remote)) && METRIC.startsWith('{OF_REWARDS}' + each.name + '/'))))"
)


def _is_evaluated(job: RLJobSpec, name: str) -> bool:
    sets = () if job.evaluation is None else job.evaluation.sets
    return any(
        is_of_set(
            name,
            each.name,
            each.samples_per_prompt,
            has_sources=data_of(each.data, job.data).source_key is not None,
        )
        for each in sets
    )


def _metric_of(path: str) -> Callable[[Any], str | None]:
    first, *others = path.split(".")

    def found(job: Any) -> str | None:  # noqa: ANN401 - the whole spec, which imports this module
        value = getattr(job, first)
        for name in others:
            value = getattr(value, name)
        return None if value is None else value.metric

    return found


def _known(path: str, field: str) -> Iterator[Rule]:
    """Rules that a metric is one of the job's: of its steps, or of its evaluation."""
    metric_of, above = _metric_of(path), f"self.{field}"
    parents = [f"has(self.{'.'.join(field.split('.')[: n + 1])})" for n in range(field.count(".") + 1)]
    is_absent, metric = f"!({' && '.join(parents)})", f"{above}.metric"

    def of_job(may_have: Callable[[RLJobSpec, str], bool]) -> Callable[[RLJobSpec], bool]:
        def holds(job: RLJobSpec) -> bool:
            name = metric_of(job)
            return name is None or may_have(job, name)

        return holds

    def rule(may_have: Callable[[RLJobSpec, str], bool], cel: str, sentence: str) -> Rule:
        return Rule(
            field=f"{field}.metric",
            holds=of_job(may_have),
            sentence=f"{{{field}.metric}} {sentence}",
            cel=f"{is_absent} || {cel.replace('METRIC', metric)}",
        )

    of_users = " || ".join(f"(METRIC.startsWith('{one}') && METRIC != '{one}')" for one in OF_USERS)
    yield rule(
        lambda _, name: is_of_evaluations(name) or is_of_steps(name),
        f"METRIC.startsWith('{EVALUATION_PREFIX}') || METRIC in {[*OF_REPORTS, *OF_STEPS]} || {of_users}",
        f"is no metric of a step. Known are {', '.join((*OF_REPORTS, *OF_STEPS))}, what rewards, rollout functions "
        "and losses name below reward/, rollout/ and loss/, and eval/SET/NAME of an evaluation.",
    )
    yield rule(
        lambda job, name: not is_of_evaluations(name) or _is_evaluated(job, name),
        f"!METRIC.startsWith('{EVALUATION_PREFIX}') || (has(self.evaluation) && self.evaluation.sets.exists(each, "
        f"METRIC.startsWith('{EVALUATION_PREFIX}' + each.name + '/') && {_OF_SET} && ({_NAMES_OF_SET})))",
        "is no metric of this job's evaluation. Give eval/SET/NAME, or, where data.sourceKey is given, "
        "eval/SET/SOURCE/NAME: SET is the name of one of evaluation.sets, NAME is mean@K (K: samplesPerPrompt of "
        "that set), std@K (of K above 1), pass@k with k of 1, 2, 4 ... K, "
        f"{', '.join(OF_EVALUATIONS[:-1])} or {OF_EVALUATIONS[-1]}.",
    )
    yield rule(
        lambda job, name: not name.startswith(OF_REWARDS) or name in _OF_EVERY_REWARD or _rewards_may_name(job, name),
        f"!METRIC.startsWith('{OF_REWARDS}') || METRIC in {_OF_EVERY_REWARD} || {_REWARDS_MAY_NAME}",
        "is named by nothing in rollout.reward. Give reward/NAME of one of rollout.reward.sum, reward/overlong or "
        "reward/shorter of a job that has them, or a reward that names metrics of its own (custom, remote).",
    )
    yield rule(
        lambda job, name: not name.startswith(OF_ROLLOUT_FUNCTIONS) or _functions_may_name(job, name),
        f"!METRIC.startsWith('{OF_ROLLOUT_FUNCTIONS}') || has(self.rollout.function) || "
        f"(METRIC == '{OF_GREEDY_ANSWERS}' && self.algorithm.advantage in {_WITH_GREEDY})",
        f"is named by a rollout function, which is absent. Add rollout.function, {_OTHER}",
    )
    yield rule(
        lambda job, name: not name.startswith(OF_LOSSES) or ":" in (job.algorithm.loss or ""),
        f"!METRIC.startsWith('{OF_LOSSES}') || (has(self.algorithm.loss) && self.algorithm.loss.contains(':'))",
        f"is named by a loss of yours, and algorithm.loss has none. Give it as package.module:function, {_OTHER}",
    )
    for need, given in _NEEDS.items():
        names = names_that_need(need)
        yield rule(_where_named(names, given), f"!(METRIC in {list(names)}) || ({given.cel})", given.sentence)


MEASURED: tuple[Rule, ...] = (
    *_known("stop_when", "stopWhen"),
    *_known("checkpoint.keep_best", "checkpoint.keepBest"),
)


def measured_metrics(job: RLJobSpec) -> Iterator[tuple[str, str]]:
    """Field below `spec`, and the metric that it names."""
    if job.stop_when is not None:
        yield "stopWhen.metric", job.stop_when.metric
    if job.checkpoint.keep_best is not None:
        yield "checkpoint.keepBest.metric", job.checkpoint.keep_best.metric
