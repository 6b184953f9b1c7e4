"""Under which name `/metrics` shows each figure of a step: one rule for all, and the units that it needs. Pure.

A gauge of the last step: `rljob_` and the figure's name with `_` for `/`, then its unit in a word where the name does
not say it. What a job's rewards, rollout functions and losses name themselves has one family, by the label `metric`.

Called by the coordinator, which lives without torch and so cannot ask the tables that docs/metrics.md is made of;
tests/unit/dcs/test_step_samples.py compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rljob_workers.telemetry.exposition import Family, Labels, Sample

UNITS: Mapping[str, str] = {
    "reward/std": "",
    "groups/all_right": "share",
    "groups/all_wrong": "share",
    "groups/mixed": "share",
    "groups/no_variance": "share",
    "groups/draws": "draws",
    "groups/last_draw_refused": "share",
    "groups/brought_forward": "share",
    "groups/put_off": "share",
    "prompt_length/mean": "tokens",
    "prompt_length/max": "tokens",
    "response_length/mean": "tokens",
    "response_length/max": "tokens",
    "response_length/truncated_share": "share",
    "samples/invalid_share": "share",
    "samples/filtered_share": "share",
    "samples/learnt_share": "share",
    "samples/drawn_share": "share",
    "staleness/mean": "versions",
    "staleness/too_old_share": "share",
    "kl/in_reward": "nats",
    "optimizer/grad_norm": "",
    "optimizer/grad_norm_max": "",
    "optimizer/learning_rate": "",
    "optimizer/skipped_steps": "steps",
    "throughput/tokens_per_second": "1/s",
    "throughput/samples_per_second": "1/s",
    "seconds/train": "s",
    "seconds/log_probs": "s",
    "seconds/publish": "s",
    "seconds/stage_checkpoint": "s",
    "seconds/waiting": "s",
    "idle/actor": "share",
    "idle/engines": "share",
    "policy/entropy": "nats",
    "policy/approx_kl": "nats",
    "policy/ratio": "",
    "policy/ratio_max": "",
    "policy/clip_fraction_low": "share",
    "policy/clip_fraction_high": "share",
    "policy/kl_reference": "nats",
    "mismatch/kl": "nats",
    "mismatch/log_prob_gap_max": "nats",
    "staleness/kl": "nats",
    "correction/weight": "",
    "correction/effective_share": "share",
    "correction/masked_fraction": "share",
    "critic/loss": "",
    "critic/value": "",
    "critic/squared_error": "",
    "critic/clip_fraction": "share",
    "critic/explained_variance": "",
    "critic/grad_norm": "",
    "critic/grad_norm_max": "",
    "critic/learning_rate": "",
    "critic/skipped_steps": "steps",
    "critic/seconds_train": "s",
    "critic/seconds_values": "s",
    "critic/seconds_stage_checkpoint": "s",
    "critic/seconds_waiting": "s",
    "experts/load_max": "",
    "experts/load_max_worst": "",
    "experts/load_entropy": "",
    "experts/unused_share": "share",
    "experts/aux_loss": "",
    "experts/z_loss": "",
    "critic/experts_load_max": "",
    "critic/experts_load_max_worst": "",
    "critic/experts_load_entropy": "",
    "critic/experts_unused_share": "share",
    "critic/experts_aux_loss": "",
    "critic/experts_z_loss": "",
    "supervised/cross_entropy": "nats",
}
"""Units of every figure that some job reports, beside those in REPORTED_APART."""

REPORTED_APART: Mapping[str, str] = {"reward/mean": "rljob_reward", "staleness/max": "rljob_staleness"}
"""Figures that are fields of the report, too, and shown as these."""

_RELEASED: Mapping[str, str] = {
    "samples/invalid_share": "rljob_invalid_share",
    "response_length/truncated_share": "rljob_truncated_share",
    "staleness/mean": "rljob_token_staleness",
    "critic/clip_fraction": "rljob_critic_clipped_share",
}
"""Names of before the rule: dashboards and alerts of users ask for them."""

_UNIT_TEXTS: Mapping[str, tuple[str, ...]] = {
    "share": ("share", "fraction"),
    "tokens": ("tokens",),
    "versions": ("versions",),
    "nats": ("nats",),
    "steps": ("steps",),
    "draws": ("draws",),
    "1/s": ("per_second",),
}
"""Any of which says the unit; the first is appended where there is none."""

_PHASE = re.compile(r"(?:(\w+)/seconds_|seconds/)(\w+)")
"""How long a role spent on what, within a step."""

OWN = "rljob_step_metric"


def series_of(name: str) -> tuple[str, Labels]:
    """The family and the labels of a figure, `group/what`."""
    if name in REPORTED_APART:
        return REPORTED_APART[name], ()
    if name not in UNITS:
        return OWN, (("metric", name),)
    if phase := _PHASE.fullmatch(name):
        return f"rljob_{phase[1] or 'actor'}_seconds", (("phase", phase[2]),)
    return _RELEASED.get(name) or f"rljob_{name.replace('/', '_')}{_unit(name)}", ()


def _unit(name: str) -> str:
    texts = _UNIT_TEXTS.get(UNITS[name], ())
    return f"_{texts[0]}" if texts and not any(text in name for text in texts) else ""


def _families() -> Iterator[tuple[str, Family]]:
    for name, unit in UNITS.items():
        family, labels = series_of(name)
        if labels:
            role = family.removeprefix("rljob_").removesuffix("_seconds")
            text = f"Seconds of the last step that the {role}'s first rank spent so."
        else:
            text = f"{name} of the last step{f' ({unit})' if unit else ''}: docs/metrics.md has its formula."
        yield family, Family(text, tuple(key for key, _ in labels))


FAMILIES: Mapping[str, Family] = {
    **dict(_families()),
    OWN: Family("A figure of the last step that the job's own functions have named.", ("metric",)),
}


def samples_of(metrics: Mapping[str, float]) -> Iterator[Sample]:
    """Samples of all figures of a step's report. A name without a group is no figure: a role notes it beside them."""
    for name, value in metrics.items():
        if "/" in name and name not in REPORTED_APART:
            yield (*series_of(name), value)
