"""Counters that a rank may send with its beats, and what each counts. Others are left out of /metrics."""

from rljob_api.names import Role
from rljob_api.roles import TRAITS
from rljob_workers.telemetry.exposition import Family
from rljob_workers.transfer_queue.types import Withheld

LOOP_SECONDS = "loop_seconds"


STARVED_SECONDS = "starved_seconds"


WITHHELD_SECONDS = "withheld_seconds"


PASSED_OVER, TRUNCATED = "prompts_passed_over", "prompts_truncated"


TOKENS_CARRIED, SAMPLES_CARRIED = "tokens_carried", "samples_carried"


REWARD_RETRIES, UNSCORED, UNREAD = "reward_retries", "samples_unscored", "judge_replies_unread"
OF_EVALUATIONS = "evaluation_"
"""Begins the names of the three where sets of an evaluation are scored."""
EVALUATION_RETRIES = f"{OF_EVALUATIONS}{REWARD_RETRIES}"
FUNCTION_RETRIES, SAMPLES_LOST = "rollout_function_retries", "samples_lost"


RANK_LABELS = ("role", "replica", "rank")


COUNTERS: dict[str, str] = {
    LOOP_SECONDS: "Seconds that the main loop of a rank that trains or generates has run.",
    STARVED_SECONDS: "Of them, those in which a rank that trains waited for rows.",
    WITHHELD_SECONDS: "Of those of a rollout, the part of its engine's capacity that was idle, its tickets withheld.",
    "groups_put": "Groups of samples that a rollout rank has put into the queue.",
    "groups_lost": "Groups that were refused since their ticket had been given to another.",
    "groups_redrawn": "Groups with fewer than two scored samples, drawn again.",
    "groups_refused": "Groups that the filter of rollout.dynamicSampling refused, drawn again.",
    PASSED_OVER: "Prompts that were too long.",
    TRUNCATED: "Prompts of which the last tokens were taken, since they were too long.",
    TOKENS_CARRIED: "Tokens of groups that were interrupted which were not generated again (rollout.partial).",
    SAMPLES_CARRIED: "Samples that such tokens were carried of.",
    "queue_claims": "Claims that brought rows.",
    "queue_rows": "Rows that a rank has claimed.",
    "queue_got_bytes": "Bytes of values read from the queue.",
    "queue_put_bytes": "Bytes of chunks put into the queue.",
    "queue_wait_seconds": "Seconds that a rank has waited for the rows that it then got.",
    REWARD_RETRIES: "Calls of rewards that had failed, and requests to rewards' servers, made again.",
    UNSCORED: "Samples that stayed without a score.",
    UNREAD: "Replies of judges that had not exactly one score on the scale.",
    EVALUATION_RETRIES: "The same calls and requests for answers of evaluations.",
    f"{OF_EVALUATIONS}{UNSCORED}": "Answers of evaluations that stayed without a score.",
    f"{OF_EVALUATIONS}{UNREAD}": "The same replies for answers of evaluations.",
    FUNCTION_RETRIES: "Samples whose rollout function had failed, begun again.",
    SAMPLES_LOST: "Samples that their rollout function could not make.",
    "skipped_steps": "Optimizer steps whose loss or gradient was not finite.",
    **{f"withheld_{reason.value.lower()}": f"Times that a rank got no ticket: {reason.value}." for reason in Withheld},
}
"""Only grow within one incarnation; exported as `rljob_rank_NAME_total`."""


_OF_TICKETS = (
    "groups_put",
    "groups_lost",
    "groups_redrawn",
    "groups_refused",
    PASSED_OVER,
    TRUNCATED,
    TOKENS_CARRIED,
    SAMPLES_CARRIED,
    REWARD_RETRIES,
    UNSCORED,
    UNREAD,
    EVALUATION_RETRIES,
    f"{OF_EVALUATIONS}{UNSCORED}",
    f"{OF_EVALUATIONS}{UNREAD}",
    FUNCTION_RETRIES,
    SAMPLES_LOST,
)


_OF_STEPS = ("skipped_steps",)


def from_zero(role: Role) -> dict[str, float]:
    """What a rank of this role counts, before anything was counted.

    A counter that begins with its first event hides it: Prometheus counts only what comes after the first value.
    """
    traits = TRAITS[role]
    names = (_OF_TICKETS if traits.draws_tickets else ()) + (_OF_STEPS if traits.saves else ())
    return dict.fromkeys(names, 0.0)


FAMILIES = {f"rljob_rank_{name}_total": Family(text, RANK_LABELS) for name, text in COUNTERS.items()}
