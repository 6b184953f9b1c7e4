"""What an evaluation finds: a sample's result as it is kept, and the metrics of all of them.

Rollouts make results, the coordinator the metrics. Pure, and without torch.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev

import orjson
import xxhash

from rljob_api.spec import RLJobSpec
from rljob_api.spec.evaluation import EvaluationSetSpec, EvaluationSpec
from rljob_api.wire.observation import SetFigure

PREFIX = "eval/"

MOST_SOURCES = 32
"""Of a set: with more, only the set as a whole has metrics."""


def digest_of(spec: EvaluationSpec, seed: int, sizes: Sequence[int]) -> str:
    """Of all that a sample's result depends on beside weights and reward; `sizes` are the sets' samples.

    `HASH:samples/samples of a prompt,...`: the control Redis finds by it which samples are of one prompt, and the
    coordinator, which does not open the sets, whether they are its own (`is_of`).
    """
    layout = ",".join(f"{size}/{each.samples_per_prompt}" for size, each in zip(sizes, spec.sets, strict=True))
    return f"{_spec_digest(spec, seed)}:{layout}"


def is_of(digest: str, spec: EvaluationSpec, seed: int) -> bool:
    """Whether it is that of a job's sets, as they are in its manifest."""
    return digest.partition(":")[0] == _spec_digest(spec, seed)


def prompt_of(number: int, digest: str, sets: Sequence[EvaluationSetSpec]) -> tuple[str, int]:
    """The set of a sample, and its prompt's place in it."""
    for size, each in zip(_sizes(digest), sets, strict=True):
        if number < size:
            return each.name, number // each.samples_per_prompt
        number -= size
    raise ValueError(f"sample {number} is of none of the sets")


def _sizes(digest: str) -> list[int]:
    return [int(part.partition("/")[0]) for part in digest.partition(":")[2].split(",")]


def _spec_digest(spec: EvaluationSpec, seed: int) -> str:
    chosen = [[seed], *(each.model_dump(mode="json") for each in spec.sets)]
    return xxhash.xxh3_64_hexdigest(orjson.dumps(chosen))


SHOWN_PROMPTS = 20
"""Of those that were set aside, in a sentence."""


@dataclass(frozen=True, slots=True)
class SampleResult:
    """One answer to one prompt of a set."""

    set_name: str
    prompt: int
    """Place in the pass over the set's data."""
    source: str
    """Where in the data the prompt comes from."""
    reward: float | None
    """None: it could not be scored."""
    length: int
    """Tokens of the answer."""
    truncated: bool
    """Whether it is as long as it may be."""

    def dump(self) -> bytes:
        """JSON."""
        return orjson.dumps(asdict(self))

    @classmethod
    def parse(cls, text: bytes) -> SampleResult:
        """Of `dump`."""
        return cls(**orjson.loads(text))


def pass_at(k: int, num_samples: int, num_passed: int) -> float:
    """The chance that one of k samples passes, without bias, of num_samples of which num_passed did.

    1 - C(n - c, k) / C(n, k), with 1 <= k <= n (Chen et al. 2021, "Evaluating Large Language Models Trained on Code").
    """
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def metrics_of(
    results: Iterable[SampleResult], sets: Sequence[EvaluationSetSpec], aside: SetAside | None = None
) -> dict[str, float]:
    """All metrics, by name: `eval/SET/METRIC` and, where a set has several sources, `eval/SET/SOURCE/METRIC`."""
    by_set: defaultdict[str, list[SampleResult]] = defaultdict(list)
    for result in results:
        by_set[result.set_name].append(result)
    found: dict[str, float] = {}
    for each in sets:
        of_set = by_set[each.name]
        found |= _named(f"{PREFIX}{each.name}", _metrics(of_set, each))
        if aside and each.name in aside:
            found[f"{PREFIX}{each.name}/set_aside"] = float(len(aside[each.name]))
        by_source: defaultdict[str, list[SampleResult]] = defaultdict(list)
        for result in of_set:
            by_source[result.source].append(result)
        if 1 < len(by_source) <= MOST_SOURCES:
            for source, of_source in sorted(by_source.items()):
                found |= _named(f"{PREFIX}{each.name}/{source}", _metrics(of_source, each))
    return found


SetAside = Mapping[str, Sequence[int]]
"""Set -> places of its prompts that killed their engine too often. They count in no figure but `set_aside`."""


def set_aside(numbers: Iterable[int], digest: str, sets: Sequence[EvaluationSetSpec]) -> SetAside:
    """The prompts of these samples."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for number in numbers:
        name, prompt = prompt_of(number, digest, sets)
        found[name].add(prompt)
    return {name: sorted(prompts) for name, prompts in found.items()}


def sentence_of_set_aside(aside: SetAside) -> str:
    """Which they are, for an event; nothing where there are none."""
    parts = []
    for name, prompts in aside.items():
        shown = ", ".join(map(str, prompts[:SHOWN_PROMPTS])) + (" ..." if len(prompts) > SHOWN_PROMPTS else "")
        parts.append(f" Set aside of {name}, since an engine died of each too often: prompt {shown}.")
    return "".join(parts)


def sentence_of(metrics: Mapping[str, float], sets: Sequence[EvaluationSetSpec]) -> str:
    """The means and the largest pass@k of each set, for an event."""
    parts = []
    for each in sets:
        names = (f"mean@{each.samples_per_prompt}", f"pass@{each.samples_per_prompt}")
        shown = [f"{name} {metrics[key]:.4f}" for name in names if (key := f"{PREFIX}{each.name}/{name}") in metrics]
        parts.append(f"{each.name} {', '.join(shown) if shown else 'has no sample with a score'}")
    return "; ".join(parts)


def is_evaluating_last(spec: RLJobSpec, recorded: int | None, evaluated: int | None) -> bool:
    """Whether all rollouts are trained and recorded, and the version reached is still to be evaluated.

    A job that is resumed with a smaller numRollouts may have reached one that is not to be.
    """
    last, evaluation = spec.rollout.num_rollouts, spec.evaluation
    if evaluation is None or recorded is None or recorded < last or not evaluation.is_due(recorded, last):
        return False
    return evaluated is None or evaluated < recorded


@dataclass(frozen=True, slots=True)
class Scored:
    """Samples of an evaluation that were scored or set aside."""

    digest: str
    numbers: Sequence[int]


def sentence_of_unfinished(version: int, scored: Scored | None, spec: EvaluationSpec, seed: int) -> str:
    """How far the evaluation of a version has come, and what becomes of it, for an event.

    It has not begun where `scored` is None, or of the sets that the job had before it was resumed.
    """
    sets = spec.sets
    if scored is None or not is_of(scored.digest, spec, seed):
        names = ", ".join(each.name for each in sets)
        return f"Version {version} is not evaluated yet ({names}). Its evaluation begins when the job goes on."
    done = Counter(prompt_of(number, scored.digest, sets)[0] for number in scored.numbers)
    sizes = zip(_sizes(scored.digest), sets, strict=True)
    shown = ", ".join(f"{each.name} {done[each.name]} of {size} samples" for size, each in sizes)
    return (
        f"The evaluation of version {version} is not finished: {shown} are scored. They stand, and the others are"
        " scored when the job goes on."
    )


def main_figures(metrics: Mapping[str, float], sets: Sequence[EvaluationSetSpec]) -> list[SetFigure]:
    """mean@k of each set that has one."""
    names = [(each.name, f"mean@{each.samples_per_prompt}") for each in sets]
    return [
        SetFigure(name=name, metric=metric, value=metrics[key])
        for name, metric in names
        if (key := f"{PREFIX}{name}/{metric}") in metrics
    ]


def _named(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in metrics.items()}


def _metrics(results: Sequence[SampleResult], spec: EvaluationSetSpec) -> dict[str, float]:
    """Of prompts, each of which counts alike, however many of its samples could be scored."""
    if not results:
        return {}
    rewards: defaultdict[int, list[float]] = defaultdict(list)
    # In an order of their own: sums are the same to the last bit, whichever sample was scored first.
    for result in sorted(results, key=lambda one: (one.prompt, one.reward or 0.0)):
        if result.reward is not None:
            rewards[result.prompt].append(result.reward)
    num_scored = sum(map(len, rewards.values()))
    found = {
        "prompts": float(len({result.prompt for result in results})),
        "samples": float(len(results)),
        "unscored_share": 1.0 - num_scored / len(results),
        "response_length": math.fsum(result.length for result in results) / len(results),
        "truncated_share": sum(result.truncated for result in results) / len(results),
    }
    if rewards:
        found |= _of_rewards(list(rewards.values()), spec)
    return found


def _of_rewards(rewards: Sequence[Sequence[float]], spec: EvaluationSetSpec) -> dict[str, float]:
    k = spec.samples_per_prompt
    means = [fmean(of_prompt) for of_prompt in rewards]
    mean_of_all = fmean(means)
    found = {f"mean@{k}": mean_of_all}
    if k > 1:
        found[f"std@{k}"] = fmean(map(pstdev, rewards))
    if len(means) > 1:
        found["mean_error"] = math.sqrt(
            math.fsum((mean - mean_of_all) ** 2 for mean in means) / (len(means) - 1) / len(means)
        )
    for size in sorted({*(1 << power for power in range(k.bit_length())), k}):
        of_prompts = [
            pass_at(size, len(of_prompt), sum(reward >= spec.pass_reward for reward in of_prompt))
            for of_prompt in rewards
            if len(of_prompt) >= size
        ]
        if of_prompts:
            found[f"pass@{size}"] = fmean(of_prompts)
    return found
