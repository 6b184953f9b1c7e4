"""Figures of the benchmark of long tails, its jobs, and the lengths of its model."""

import math
import random
import statistics
from collections.abc import Mapping

import pytest
import torch

from rljob_api.spec import RLJob, RLJobSpec
from rljob_workers.models.building import initial_state
from rljob_workers.models.tokenizers import build_tokenizer
from tests.bench.tail import learning
from tests.bench.tail.figures import HEAD, Counted, Figures, figures_of, possible_rate, row_of
from tests.bench.tail.jobs import VARIANTS, engines_job, simulated_job
from tests.bench.tail.tail_model import Age, LogNormal, ages

LENGTHS = LogNormal(64, 1.0)


def line(time: float, length: float, **metrics: float) -> Mapping[str, float]:
    return {"time": time, "samples": 10.0, "tokens": 10 * length, "seconds": 1.0, **metrics}


def test_the_figures_of_a_run_are_of_the_counted_steps() -> None:
    lines = [
        line(5, 1),
        line(10, 1),
        line(12, 30, **{"idle/actor": 0.5, "seconds": 3.0, "staleness/mean": 1.0, "staleness/max": 1.0}),
        line(14, 40, **{"idle/actor": 0.1, "staleness/mean": 2.0, "staleness/max": 3.0}),
        line(18, 50, **{"staleness/mean": 2.0, "staleness/max": 2.0}),
        line(99, 1),
    ]
    found = figures_of("Swap", 3, lines, Counted(before=2, steps=3, after=1), possible=5.0)
    assert (found.samples_per_second, found.of_possible) == (30 / 8, 0.75)
    assert found.actor_idle == pytest.approx((0.5 * 3 + 0.1) / 4)
    assert found.engines_idle is None
    assert found.staleness_mean == pytest.approx((30 + 80 + 100) / 120)
    assert (found.staleness_max, found.length_first, found.length_last) == (3, 30, 50)


def test_what_was_learnt_is_a_moving_mean_by_samples_and_by_time() -> None:
    steps = [{"time": 100.0 + step, "seconds": 1.0, "samples": 4000.0, "reward": step / 40} for step in range(1, 21)]
    # 40,000 samples are reached by step 10, whose window is steps 3 to 10.
    assert learning.reward_at(steps, 40_000) == pytest.approx(6.5 / 40)
    assert learning.reward_at(steps, 80_001) is None
    assert learning.first_learnt(steps) is None
    learnt = [{**step, "reward": 1.0} for step in steps]
    assert learning.first_learnt(learnt) == 7
    assert learning.row_of("Swap", 1, learnt).split() == [
        "Swap",
        "1",
        "1.000",
        "1.000",
        "1.000",
        "32000",
        "8.0",
        "4000.0",
    ]


def test_a_run_that_is_cut_short_has_no_figures() -> None:
    with pytest.raises(ValueError, match="Swap: 1 steps were trained, not 12"):
        figures_of("Swap", 1, [line(1, 1)], Counted.at(1, 5), None)


def test_a_row_is_below_its_head() -> None:
    found = Figures("Swap", 2, 9, 200.0, 0.9, 0.1, 0.05, 1.5, 2.0, 0.02, 64.0, 65.0)
    bound = Figures("Bound", 2, 9, 100.0, 0.45, 0.5, 0.5, 1.5, 2.0, None, 64.0, 65.0)
    assert (found.pace, bound.pace) == pytest.approx((0.9 / 0.95, 0.9))
    row = row_of(found, bound)
    assert row.split() == ["Swap", "2", "200.0", "2.00", "90%", "10%", "5%", "1.50,", "2", "2%", "64.0,", "65.0"]
    assert {len(row)} == {len(each) for each in HEAD.splitlines()}


@pytest.mark.parametrize(
    ("trained", "rate"), [(None, 32.0), (20.0, 20.0)], ids=["the engines' rate", "the slower trainer's"]
)
def test_the_most_that_is_possible(trained: float | None, rate: float) -> None:
    assert possible_rate(slots=8, tokens_per_second=256, mean_length=64, trained_per_second=trained) == rate


def test_a_step_of_the_simulated_job_takes_as_long_as_it_is_asked_to() -> None:
    """128 slots, 128 tokens' time of 256 samples in 2 s; mean 64, of which the cut takes 0.2."""
    assert simulated_job(2.0).possible == pytest.approx(128, rel=0.01)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_manifests_of_a_variant_are_valid(variant: str) -> None:
    with engines_job() as engines:
        for job in (simulated_job(1.0), engines):
            manifest = job.varied(variant, 4, 9)
            rollout = RLJob.model_validate(manifest).spec.rollout
            assert (rollout.max_staleness, rollout.num_rollouts) == (4, 9)


def test_lengths_of_the_chain_are_log_normal() -> None:
    chain, chance = ages(LENGTHS, 53, 1024), random.Random(1)
    found = [drawn(chain, chance) for _ in range(20_000)]
    assert statistics.mean(found) == pytest.approx(64.5, rel=0.03)
    assert statistics.pstdev(map(math.log, found)) == pytest.approx(1.0, abs=0.03)
    for length in (10, 40, 100, 300):
        assert sum(each > length for each in found) / len(found) == pytest.approx(LENGTHS.longer_than(length), abs=0.01)


def drawn(chain: list[Age], chance: random.Random) -> int:
    place = length = 0
    while True:
        length, number, age = length + 1, chance.random(), chain[place]
        if number < age.ends:
            return length
        place += number < age.ends + age.goes_on and place + 1 < len(chain)


def test_the_model_gives_the_chances_of_the_chain() -> None:
    from transformers import AutoModelForCausalLM

    with engines_job() as job:
        spec = RLJobSpec.model_validate(job.manifest["spec"])
        tokenizer = build_tokenizer(spec.model)
        assert initial_state(spec.model, tokenizer), "our engines and trainers load it"
        assert spec.model.path is not None
        model = AutoModelForCausalLM.from_pretrained(spec.model.path)
    with torch.inference_mode():
        probabilities = model(torch.tensor([tokenizer.encode("123=ABCC")])).logits.softmax(-1)[0, 3:]
    chain = ages(LENGTHS, 53, 1024)
    ends = probabilities[:, tokenizer.eos_token_id].tolist()
    assert ends == pytest.approx([chain[place].ends for place in (0, 1, 2, 3, 3)], abs=1e-4)
    assert probabilities[1, tokenizer.convert_tokens_to_ids("B")] == pytest.approx(chain[1].goes_on, abs=1e-4)
