"""Names of metrics that a manifest may refer to: a step's, and an evaluation's. Anyone may import it.

Tables of the workers have what each of them is (`docs/metrics.md`); a test compares the names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

EVALUATION_PREFIX = "eval/"

OF_REPORTS = ("reward", "loss", "staleness")
"""What every step reports beside its metrics."""

OF_STEPS = (
    "reward/mean",
    "reward/std",
    "groups/all_right",
    "groups/all_wrong",
    "groups/mixed",
    "groups/no_variance",
    "groups/draws",
    "groups/last_draw_refused",
    "groups/brought_forward",
    "groups/put_off",
    "prompt_length/mean",
    "prompt_length/max",
    "response_length/mean",
    "response_length/max",
    "response_length/truncated_share",
    "samples/invalid_share",
    "samples/drawn_share",
    "staleness/mean",
    "staleness/max",
    "kl/in_reward",
    "optimizer/grad_norm",
    "optimizer/grad_norm_max",
    "optimizer/learning_rate",
    "optimizer/skipped_steps",
    "throughput/tokens_per_second",
    "throughput/samples_per_second",
    "seconds/train",
    "seconds/log_probs",
    "seconds/publish",
    "seconds/stage_checkpoint",
    "seconds/waiting",
    "idle/actor",
    "idle/engines",
    "policy/entropy",
    "policy/approx_kl",
    "policy/ratio",
    "policy/ratio_max",
    "policy/clip_fraction_low",
    "policy/clip_fraction_high",
    "policy/kl_reference",
    "mismatch/kl",
    "mismatch/log_prob_gap_max",
    "staleness/kl",
    "correction/weight",
    "correction/effective_share",
    "correction/masked_fraction",
    "critic/value",
    "critic/squared_error",
    "critic/clip_fraction",
    "critic/explained_variance",
    "critic/loss",
    "critic/grad_norm",
    "critic/grad_norm_max",
    "critic/learning_rate",
    "critic/skipped_steps",
    "critic/seconds_train",
    "critic/seconds_values",
    "critic/seconds_stage_checkpoint",
    "critic/seconds_waiting",
    "experts/load_max",
    "experts/load_max_worst",
    "experts/load_entropy",
    "experts/unused_share",
    "experts/aux_loss",
    "experts/z_loss",
    "supervised/cross_entropy",
)

OF_USERS = ("reward/", "rollout/")
"""Rewards and rollout functions name metrics of their own below these."""

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
    """Of a set, or one of its sources; pass@k is there for powers of two up to the number of samples, and for that."""
    yield from OF_EVALUATIONS
    yield f"mean@{samples_per_prompt}"
    if samples_per_prompt > 1:
        yield f"std@{samples_per_prompt}"
    for k in sorted({*(1 << power for power in range(samples_per_prompt.bit_length())), samples_per_prompt}):
        yield f"pass@{k}"


def is_of_set(name: str, set_name: str, samples_per_prompt: int) -> bool:
    """Whether a metric is that of a set or of one of its sources."""
    return name.startswith(f"{EVALUATION_PREFIX}{set_name}/") and any(
        name.endswith(f"/{one}") for one in names_of_set(samples_per_prompt)
    )
