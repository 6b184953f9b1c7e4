"""The pipeline as data: the columns of a row, and which task reads and writes which of them.

The coordinator gives the queue its shape from here; the roles take the names of their tasks and columns. Imports no
torch and no role.
"""

from rljob_api.roles import TRAITS
from rljob_api.spec import RLJobSpec
from rljob_api.spec.training import ClaimPolicy
from rljob_workers.transfer_queue.types import QueueShape, Task, TaskKind

TOKENS = "tokens"


RESPONSE_LENGTHS = "response_lengths"


LOSS_MASKS = "loss_masks"


ROLLOUT_LOG_PROBS = "rollout_log_probs"


REWARDS = "rewards"


VALID = "valid"
"""1 element a row: 0 where the sample could not be scored, so that nothing may be learnt from it."""


FINISH_REASONS = "finish_reasons"
"""1 element a row, as in `rollout.groups.FINISH_CODES`."""


VERSION_SPANS = "version_spans"
"""[spans, 4] a row: lineage and version of the weight, first token and the one after the last."""


LOG_PROBS = "log_probs"


REF_LOG_PROBS = "ref_log_probs"


ADVANTAGES = "advantages"


GENERATED_FIELDS = (
    TOKENS,
    RESPONSE_LENGTHS,
    LOSS_MASKS,
    ROLLOUT_LOG_PROBS,
    REWARDS,
    VALID,
    FINISH_REASONS,
    VERSION_SPANS,
)


ACTOR_LOG_PROBS = Task("actor_log_probs", TaskKind.FORWARD, (TOKENS, RESPONSE_LENGTHS), (LOG_PROBS,))


REFERENCE_LOG_PROBS = Task("ref_log_probs", TaskKind.FORWARD, (TOKENS, RESPONSE_LENGTHS), (REF_LOG_PROBS,))


COMPUTE_ADVANTAGES = Task(
    "compute_advantages_and_returns",
    TaskKind.FORWARD,
    (REWARDS, RESPONSE_LENGTHS, VALID),
    (ADVANTAGES,),
    ClaimPolicy.GROUP,
)


_FORWARD = (ACTOR_LOG_PROBS, COMPUTE_ADVANTAGES, REFERENCE_LOG_PROBS)


ACTOR_TRAIN = "actor_train"


def fields_of(spec: RLJobSpec) -> tuple[str, ...]:
    """The columns that a row of this job gets in the end: what is generated, and what its roles compute."""
    return (*GENERATED_FIELDS, *(field for task in _forward_tasks(spec) for field in task.writes))


def actor_train(spec: RLJobSpec) -> Task:
    """The actor's task. It waits for nothing that it does not read.

    Without actor_fwd it makes its own log-probs (`training.loop.Proximal`). The reference's are read by the KL term:
    where its coefficient is 0 a reference goes on serving rows as it comes to them, and no task waits for it.
    """
    unread = set() if spec.algorithm.kl.coefficient > 0 else {REF_LOG_PROBS}
    needs = tuple(field for field in fields_of(spec) if field not in unread)
    return Task(ACTOR_TRAIN, TaskKind.TRAINING, needs, policy=spec.training.claim_policy)


def _forward_tasks(spec: RLJobSpec) -> list[Task]:
    served = {name for role in spec.roles.present() for name in TRAITS[role].tasks}
    return [task for task in _FORWARD if task.name in served]


def queue_shape(spec: RLJobSpec) -> QueueShape:
    """What the queue must know of the job."""
    return QueueShape(
        batch_size=spec.rollout.batch_size,
        samples_per_prompt=spec.rollout.samples_per_prompt,
        max_staleness=spec.rollout.max_staleness,
        num_rollouts=spec.rollout.num_rollouts,
        max_prompt_kills=spec.rollout.max_prompt_kills,
        max_attempts=spec.rollout.max_attempts,
        generated_fields=GENERATED_FIELDS,
        tasks=(*_forward_tasks(spec), actor_train(spec)),
    )
