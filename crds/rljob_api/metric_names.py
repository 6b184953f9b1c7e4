"""Names of metrics that a manifest may refer to: a step's, and an evaluation's. Anyone may import it.

Tables of the workers have what each of them is (`docs/metrics.md`); a test compares the names.
"""

from __future__ import annotations

from enum import Enum, auto
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EVALUATION_PREFIX = "eval/"

OF_REPORTS = ("reward", "loss", "staleness")
"""Every step reports these beside its metrics."""


class Needs(Enum):
    """The part that a job must have so that its steps may have a metric. `rljob_api.spec.measured` looks for it."""

    COMPUTED = auto()
    """A model that is computed: simulated ones have no loss of tokens."""
    CRITIC = auto()
    DYNAMIC_SAMPLING = auto()
    SWAPPED_GROUPS = auto()
    """Groups that may go to another rollout than they were begun for."""
    SAMPLE_FILTER = auto()
    CARRIED_GROUPS = auto()
    """Groups that go on from rollout to rollout, some of whose tokens become too old."""
    EARLIER_VERSIONS = auto()
    """Rows that may be of a version before the one that is trained."""
    OWN_LOG_PROBS = auto()
    """Log-probs that the actor computes in a pass of their own."""
    KL_IN_REWARD = auto()
    KL_IN_LOSS = auto()
    CORRECTION = auto()
    EXPERTS = auto()
    AUX_LOSS = auto()
    Z_LOSS = auto()


_OF_STEPS: Mapping[tuple[Needs, ...], tuple[str, ...]] = {
    (): (
        "reward/mean",
        "reward/std",
        "groups/all_right",
        "groups/all_wrong",
        "groups/mixed",
        "groups/no_variance",
        "prompt_length/mean",
        "prompt_length/max",
        "response_length/mean",
        "response_length/max",
        "response_length/truncated_share",
        "samples/invalid_share",
        "samples/learnt_share",
        "samples/drawn_share",
        "staleness/mean",
        "staleness/max",
        "optimizer/grad_norm",
        "optimizer/grad_norm_max",
        "optimizer/learning_rate",
        "optimizer/skipped_steps",
        "throughput/tokens_per_second",
        "throughput/samples_per_second",
        "seconds/train",
        "seconds/publish",
        "seconds/stage_checkpoint",
        "seconds/waiting",
        "idle/actor",
        "idle/engines",
    ),
    (Needs.DYNAMIC_SAMPLING,): (
        "groups/draws",
        "groups/last_draw_refused",
    ),
    (Needs.SWAPPED_GROUPS,): (
        "groups/brought_forward",
        "groups/put_off",
    ),
    (Needs.SAMPLE_FILTER,): ("samples/filtered_share",),
    (Needs.CARRIED_GROUPS,): ("staleness/too_old_share",),
    (Needs.KL_IN_REWARD,): ("kl/in_reward",),
    (Needs.OWN_LOG_PROBS,): ("seconds/log_probs",),
    (Needs.COMPUTED,): (
        "policy/entropy",
        "policy/approx_kl",
        "policy/ratio",
        "policy/ratio_max",
        "policy/clip_fraction_low",
        "policy/clip_fraction_high",
        "mismatch/kl",
        "mismatch/log_prob_gap_max",
    ),
    (Needs.COMPUTED, Needs.EARLIER_VERSIONS): ("staleness/kl",),
    (Needs.COMPUTED, Needs.KL_IN_LOSS): ("policy/kl_reference",),
    (Needs.COMPUTED, Needs.CORRECTION): (
        "correction/weight",
        "correction/effective_share",
        "correction/masked_fraction",
    ),
    (Needs.COMPUTED, Needs.CRITIC): (
        "critic/value",
        "critic/squared_error",
        "critic/clip_fraction",
        "critic/explained_variance",
    ),
    (Needs.CRITIC,): (
        "critic/loss",
        "critic/grad_norm",
        "critic/grad_norm_max",
        "critic/learning_rate",
        "critic/skipped_steps",
        "critic/seconds_train",
        "critic/seconds_values",
        "critic/seconds_stage_checkpoint",
        "critic/seconds_waiting",
    ),
    (Needs.EXPERTS,): (
        "experts/load_max",
        "experts/load_max_worst",
        "experts/load_entropy",
        "experts/unused_share",
    ),
    (Needs.EXPERTS, Needs.AUX_LOSS): ("experts/aux_loss",),
    (Needs.EXPERTS, Needs.Z_LOSS): ("experts/z_loss",),
}

OF_STEPS = tuple(chain.from_iterable(_OF_STEPS.values()))


def names_that_need(need: Needs) -> tuple[str, ...]:
    """The metrics of steps that a job without it never reports."""
    return tuple(chain.from_iterable(names for needs, names in _OF_STEPS.items() if need in needs))


OF_REWARDS, OF_ROLLOUT_FUNCTIONS, OF_LOSSES = "reward/", "rollout/", "loss/"

OF_USERS = (OF_REWARDS, OF_ROLLOUT_FUNCTIONS, OF_LOSSES)
"""Rewards, rollout functions and losses of users name metrics of their own below these."""

OF_GREEDY_ANSWERS = "rollout/greedy_reward"
"""Jobs whose prompts have a greedy answer each report it."""

OF_EVALUATIONS = (
    "mean_error",
    "response_length",
    "truncated_share",
    "unscored_share",
    "prompts",
    "samples",
)
"""Beside those that have the number of samples in their name."""


def is_of_evaluations(name: str) -> bool:
    """Whether a metric is one of an evaluation, by its name."""
    return name.startswith(EVALUATION_PREFIX)


def is_of_steps(name: str) -> bool:
    """Whether steps have, or may have, a metric of this name."""
    return name in OF_REPORTS or name in OF_STEPS or any(name.startswith(one) and name != one for one in OF_USERS)


def names_of_set(samples_per_prompt: int) -> Iterator[str]:
    """Metrics of a set or one of its sources; pass@k for powers of two up to the number of samples, and for that."""
    yield from OF_EVALUATIONS
    yield f"mean@{samples_per_prompt}"
    if samples_per_prompt > 1:
        yield f"std@{samples_per_prompt}"
    for k in sorted({*(1 << power for power in range(samples_per_prompt.bit_length())), samples_per_prompt}):
        yield f"pass@{k}"


def is_of_set(name: str, set_name: str, samples_per_prompt: int, *, has_sources: bool) -> bool:
    """Whether a metric is that of a set, or of one of its sources where its prompts may have several."""
    beginning = f"{EVALUATION_PREFIX}{set_name}"
    if not name.startswith(f"{beginning}/"):
        return False
    if not has_sources and name.rpartition("/")[0] != beginning:
        return False
    return any(name.endswith(f"/{one}") for one in names_of_set(samples_per_prompt))
