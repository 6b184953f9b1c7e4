"""Metrics of an evaluation, by numbers computed by hand and against a loop over all subsets."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.manifest import parse_manifest
from rljob_api.spec.evaluation import EvaluationDataSpec, EvaluationSetSpec
from rljob_workers.evaluation import SampleResult, is_evaluating_last, metrics_of, pass_at, sentence_of


def make_set(name: str = "a", k: int = 2) -> EvaluationSetSpec:
    return EvaluationSetSpec(
        name=name, data=EvaluationDataSpec(prompts="p.jsonl"), samples_per_prompt=k, pass_reward=0.5
    )


def result(prompt: int, reward: float | None, *, source: str = "x", length: int = 4, cut: bool = False) -> SampleResult:
    return SampleResult("a", prompt, source, reward, length, cut)


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n), st.integers(0, n))))
def test_pass_at_k_is_the_share_of_choices_of_k_samples_with_one_that_passes(
    case: tuple[int, int, int],
) -> None:
    k, num_samples, num_passed = case
    choices = list(combinations(range(num_samples), k))
    passing = sum(any(sample < num_passed for sample in choice) for choice in choices)
    assert pass_at(k, num_samples, num_passed) == pytest.approx(passing / len(choices), abs=1e-12)


def test_the_metrics_of_a_set_and_of_its_sources() -> None:
    results = [
        result(0, 1.0, length=2),
        result(0, 0.0, length=6, cut=True),
        result(1, 0.5, source="y"),
        result(1, None, source="y"),
    ]
    found = metrics_of(results, [make_set()])
    assert found == pytest.approx(
        {
            "eval/a/prompts": 2,
            "eval/a/samples": 4,
            "eval/a/unscored_share": 0.25,
            "eval/a/response_length": 4,
            "eval/a/truncated_share": 0.25,
            "eval/a/mean@2": 0.5,
            "eval/a/std@2": 0.25,
            "eval/a/mean_error": 0,
            "eval/a/pass@1": 0.75,
            "eval/a/pass@2": 1,
            "eval/a/x/prompts": 1,
            "eval/a/x/samples": 2,
            "eval/a/x/unscored_share": 0,
            "eval/a/x/response_length": 4,
            "eval/a/x/truncated_share": 0.5,
            "eval/a/x/mean@2": 0.5,
            "eval/a/x/std@2": 0.5,
            "eval/a/x/pass@1": 0.5,
            "eval/a/x/pass@2": 1,
            "eval/a/y/prompts": 1,
            "eval/a/y/samples": 2,
            "eval/a/y/unscored_share": 0.5,
            "eval/a/y/response_length": 4,
            "eval/a/y/truncated_share": 0,
            "eval/a/y/mean@2": 0.5,
            "eval/a/y/std@2": 0,
            "eval/a/y/pass@1": 1,
        }
    )
    assert sentence_of(found, [make_set()]) == "a mean@2 0.5000, pass@2 1.0000"


def test_the_error_of_a_mean_is_the_deviation_of_prompts_over_the_root_of_their_number() -> None:
    found = metrics_of([result(0, 0.0), result(1, 1.0), result(2, 0.5)], [make_set(k=1)])
    assert found["eval/a/mean_error"] == pytest.approx(0.5 / 3**0.5)
    assert "eval/a/std@1" not in found


@given(st.permutations([result(prompt, reward) for prompt in range(3) for reward in (0.1, 0.2, 0.7)]))
def test_no_figure_depends_on_which_sample_was_scored_first(results: list[SampleResult]) -> None:
    first = [result(prompt, reward) for prompt in range(3) for reward in (0.1, 0.2, 0.7)]
    assert metrics_of(results, [make_set(k=3)]) == metrics_of(first, [make_set(k=3)])


def test_without_any_score_there_is_no_mean() -> None:
    found = metrics_of([result(0, None)], [make_set(), make_set("b")])
    assert found["eval/a/unscored_share"] == 1
    assert not any("@" in name or name.startswith("eval/b") for name in found)
    assert sentence_of(found, [make_set(), make_set("b")]) == (
        "a has no sample with a score; b has no sample with a score"
    )


def test_a_result_is_what_was_dumped() -> None:
    one = result(3, None, source="ü")
    assert SampleResult.parse(one.dump()) == one


JOB = """
metadata: {{name: job}}
spec:
  model: {{config: {{tokenizer: {{kind: Character, alphabet: 0123456789=}}}}}}
  data: {{prompts: p.jsonl}}
  rollout: {{numRollouts: {rollouts}, batchSize: 2, samplesPerPrompt: 2}}
  training: {{globalBatchSize: 4, maxTokensPerMicroBatch: 64}}
  evaluation: {{sets: [{{name: a, data: {{prompts: q.jsonl}}}}], everySteps: 5}}
"""


@pytest.mark.parametrize(
    ("rollouts", "recorded", "evaluated", "expected"),
    [
        pytest.param(8, 7, 5, False, id="the last version is not recorded yet"),
        pytest.param(8, 8, 5, True, id="it is recorded and not evaluated"),
        pytest.param(8, 8, None, True, id="nothing was evaluated yet"),
        pytest.param(8, 8, 8, False, id="it is evaluated"),
        pytest.param(8, 9, 5, False, id="numRollouts was lowered below a version that is not to be evaluated"),
        pytest.param(8, 10, 5, True, id="numRollouts was lowered below one that is"),
        pytest.param(8, None, None, False, id="nothing is recorded"),
    ],
)
def test_whether_the_last_version_is_still_to_be_evaluated(
    rollouts: int, recorded: int | None, evaluated: int | None, expected: bool
) -> None:
    spec = parse_manifest(JOB.format(rollouts=rollouts), "job").spec
    assert is_evaluating_last(spec, recorded, evaluated) is expected
