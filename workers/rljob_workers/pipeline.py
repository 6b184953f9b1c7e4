"""The pipeline as data: which task reads and writes which column of a row, derived from the job.

The coordinator gives the queue its shape from here; the roles take the names of their tasks. Imports no torch and no
role.
"""

from collections.abc import Mapping
from dataclasses import replace

from rljob_api.roles import TRAITS
from rljob_api.spec import RLJobSpec
from rljob_api.spec.advantages import Statistics
from rljob_api.spec.algorithm import NoVariance
from rljob_api.spec.training import ClaimPolicy
from rljob_workers.tensors.columns import Column
from rljob_workers.transfer_queue.types import FieldKind, ForwardPolicy, QueueShape, Task, TaskKind

GENERATED = (
    Column.TOKENS,
    Column.RESPONSE_LENGTHS,
    Column.LOSS_MASKS,
    Column.ROLLOUT_LOG_PROBS,
    Column.REWARDS,
    Column.VALID,
    Column.FINISH_REASONS,
    Column.VERSION_SPANS,
    Column.EXTRA,
)
"""Written by the rollout under its ticket, in every job."""


ACTOR_LOG_PROBS = Task(
    "actor_log_probs", TaskKind.FORWARD, (Column.TOKENS, Column.RESPONSE_LENGTHS), (Column.LOG_PROBS,)
)


REFERENCE_LOG_PROBS = Task(
    "ref_log_probs", TaskKind.FORWARD, (Column.TOKENS, Column.RESPONSE_LENGTHS), (Column.REF_LOG_PROBS,)
)


CRITIC_VALUES = Task("critic_values", TaskKind.FORWARD, (Column.TOKENS, Column.RESPONSE_LENGTHS), (Column.VALUES,))


COMPUTE_ADVANTAGES = "compute_advantages_and_returns"


ACTOR_TRAIN = "actor_train"


CRITIC_TRAIN = Task(
    "critic_train",
    TaskKind.TRAINING,
    (
        Column.TOKENS,
        Column.RESPONSE_LENGTHS,
        Column.LOSS_MASKS,
        Column.REWARDS,
        Column.VALID,
        Column.FINISH_REASONS,
        Column.VERSION_SPANS,
        Column.VALUES,
        Column.RETURNS,
    ),
    publishes=False,
)
"""The critic's; of a job it has the job's claim policy and steps (`critic_train`)."""


def columns_of(spec: RLJobSpec) -> tuple[str, ...]:
    """The columns that a row of this job gets in the end: what is generated, and what its roles compute."""
    return (*generated(spec), *(column for task in _forward_tasks(spec) for column in task.writes))


def generated(spec: RLJobSpec) -> tuple[str, ...]:
    """What the rollout writes under its ticket: without a role for advantages these too: it has whole groups.

    Baselines are there in either case, so that rows are the same with the role and without it.
    """
    baselines = (Column.BASELINES,) if spec.algorithm.advantage_traits.needs_greedy else ()
    if rollout_estimates(spec):
        return (*GENERATED, *baselines, *compute_advantages(spec).writes)
    return (*GENERATED, *baselines)


def rollout_estimates(spec: RLJobSpec) -> bool:
    """Whether advantages are made where rewards are: rules say that they then need nothing else."""
    return COMPUTE_ADVANTAGES not in _served(spec)


def compute_advantages(spec: RLJobSpec) -> Task:
    """The task of the job's estimator: it gets as many rows at once as its statistics are taken over."""
    algorithm = spec.algorithm
    traits, leaves_out = algorithm.advantage_traits, algorithm.no_variance is NoVariance.LEAVE_OUT
    needs, writes = [Column.REWARDS, Column.VALID], [Column.ROW_ADVANTAGES]
    if traits.is_per_token or algorithm.kl.is_in_reward:
        needs += [Column.RESPONSE_LENGTHS, Column.LOSS_MASKS, Column.FINISH_REASONS]
    if traits.needs_reference or algorithm.kl.is_in_reward:
        needs += [
            Column.REF_LOG_PROBS,
            Column.LOG_PROBS if ACTOR_LOG_PROBS.name in _served(spec) else Column.ROLLOUT_LOG_PROBS,
        ]
    if traits.needs_greedy:
        needs.append(Column.BASELINES)
    if traits.is_per_token:
        writes = [Column.ADVANTAGES]
    if algorithm.kl.is_in_reward:
        writes.append(Column.REWARD_KL)
    if traits.needs_values:
        needs.append(Column.VALUES)
        writes.append(Column.RETURNS)
    if leaves_out:
        writes.append(Column.HAS_VARIANCE)
    statistics = traits.statistics
    if leaves_out and statistics is Statistics.ROW:
        statistics = Statistics.GROUP
    return Task(COMPUTE_ADVANTAGES, TaskKind.FORWARD, tuple(needs), tuple(writes), _CLAIMS[statistics])


def _served(spec: RLJobSpec) -> set[str]:
    """Names of the tasks that some role has."""
    return {name for role in spec.roles.present() for name in TRAITS[role].tasks}


_CLAIMS: Mapping[Statistics, ClaimPolicy | ForwardPolicy] = {
    Statistics.ROW: ClaimPolicy.FIFO,
    Statistics.GROUP: ClaimPolicy.GROUP,
    Statistics.PARTITION: ForwardPolicy.PARTITION,
}


def actor_train(spec: RLJobSpec) -> Task:
    """The actor's task. It waits for nothing that it does not read.

    Without actor_fwd it makes its own log-probs (`training.loop.Proximal`). The reference's are read by the KL term
    of the loss, and by advantages that are made of them: where there is neither a reference goes on serving rows as it
    comes to them, and no task waits for it. Values and returns are a critic's, and baselines are in the advantages.
    """
    unread = {Column.VALUES, Column.RETURNS, Column.BASELINES}
    if not spec.algorithm.kl.is_in_loss:
        unread.add(Column.REF_LOG_PROBS)
    needs = tuple(column for column in columns_of(spec) if column not in unread)
    training = spec.training
    return Task(ACTOR_TRAIN, TaskKind.TRAINING, needs, (), training.claim_policy, training.global_batch_size)


def critic_train(spec: RLJobSpec) -> Task:
    """The critic's task."""
    training = spec.training
    return replace(CRITIC_TRAIN, policy=training.claim_policy, rows_per_step=training.global_batch_size)


def _forward_tasks(spec: RLJobSpec) -> list[Task]:
    served = _served(spec)
    tasks = (ACTOR_LOG_PROBS, CRITIC_VALUES, compute_advantages(spec), REFERENCE_LOG_PROBS)
    return [task for task in tasks if task.name in served]


def _training_tasks(spec: RLJobSpec) -> list[Task]:
    served = _served(spec)
    return [task for task in (actor_train(spec), critic_train(spec)) if task.name in served]


def queue_shape(spec: RLJobSpec) -> QueueShape:
    """What the queue must know of the job."""
    columns = columns_of(spec)
    return QueueShape(
        batch_size=spec.rollout.batch_size,
        samples_per_prompt=spec.rollout.samples_per_prompt,
        max_staleness=spec.rollout.max_staleness,
        order=spec.rollout.order,
        carries=spec.rollout.carries,
        more_groups=spec.rollout.more_groups,
        num_rollouts=spec.rollout.num_rollouts,
        max_prompt_kills=spec.rollout.max_prompt_kills,
        max_attempts=spec.rollout.max_attempts,
        generated_fields=generated(spec),
        tasks=(*_forward_tasks(spec), *_training_tasks(spec)),
        kinds=tuple(FieldKind(column.value, column.dtype, column.inner) for column in Column if column in columns),
        has_curriculum=spec.rollout.curriculum is not None,
        has_partials=spec.rollout.partial is not None,
    )
