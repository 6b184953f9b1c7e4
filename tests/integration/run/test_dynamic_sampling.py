"""Groups without variance are drawn anew: each draw is counted once, whatever dies; what is trained has variance."""

from collections import defaultdict
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec import RLJob
from rljob_cli.jobs.sample_log import read_lines, standing_samples
from rljob_workers.data import build_prompt_source
from rljob_workers.models.tokenizers import build_tokenizer

from .job import HURRY, RunningJob, kill, make_simulated

ROLLOUTS = 16

MAX_ATTEMPTS = 4

REWARD = f"""
import time
from pathlib import Path

def score(answers):
    until = time.monotonic() + 0.3
    while time.monotonic() < until and not Path(__file__).with_name("{HURRY}").exists():
        time.sleep(0.02)
    differs = int(answers[0].label) % 3 == 0
    return [float(answer.index % 2) if differs else 1.0 for answer in answers]

def raises(answers, rewards):
    raise KeyError("difficulty")
"""


def make_job(folder: Path, **sampling: Any) -> dict[str, Any]:
    """Samples differ in one of three prompts."""
    (folder / "thirds.py").write_text(REWARD)
    reward = {"custom": {"function": "thirds:score", "path": str(folder)}}
    sampled = {"maxAttempts": MAX_ATTEMPTS, **sampling}
    return make_simulated(folder, rollout={"numRollouts": ROLLOUTS, "reward": reward, "dynamicSampling": sampled})


def num_passing(manifest: dict[str, Any], draws: int) -> int:
    """Of the first so many prompts of the job's data."""
    spec = RLJob.model_validate(manifest).spec
    source = build_prompt_source(spec.data, build_tokenizer(spec.model))
    return sum(int(source.at(place).label) % 3 == 0 for place in islice(count(), draws))


def test_every_draw_is_counted_once_and_what_is_trained_has_variance_or_is_the_last_draw(tmp_path: Path) -> None:
    manifest = make_job(tmp_path)
    with RunningJob(tmp_path, manifest) as job:
        job.wait_for_step(3)
        kill(job.rank_pid("rollout"))
        job.wait_for_event("RankExited", role="rollout", scope="Global")
        report = job.assert_succeeded(epochs=2)
        lines = standing_samples(read_lines(job.out / "samples.jsonl"))
        rewards, draws = defaultdict(set), {}
        for line in lines:
            rewards[line.step, line.group].add(line.reward)
            draws[line.step, line.group] = (line.draws, line.last_draw_refused)
        assert len(draws) == ROLLOUTS * 8
        for place, (number, last_refused) in draws.items():
            assert (len(rewards[place]) == 1) is last_refused
            assert number == MAX_ATTEMPTS if last_refused else 1 <= number <= MAX_ATTEMPTS
        # Prompts are drawn in order, and each of them by one group: none is lost, and none is counted twice.
        total, exhausted = sum(number for number, _ in draws.values()), sum(refused for _, refused in draws.values())
        assert num_passing(manifest, total) == len(draws) - exhausted
        assert (report.redrawn.draws, report.redrawn.last_refused) == (total - len(draws), exhausted)
        assert 0 < exhausted < len(draws)
        steps = {step["step"]: step for step in job.metrics()}  # the last of those that were trained again
        for r, step in steps.items():
            of_step = [number for (trained, _), (number, _) in draws.items() if trained == r]
            assert step["groups/draws"] == pytest.approx(sum(of_step) / 8)
        assert sum(step["groups/last_draw_refused"] for step in steps.values()) * 8 == pytest.approx(exhausted)


def test_a_filter_that_raises_fails_the_job_with_its_name(tmp_path: Path) -> None:
    with RunningJob(tmp_path, make_job(tmp_path, filter="thirds:raises", path=str(tmp_path))) as job:
        (message,) = job.refused()
        assert message.startswith("rollout-0: rollout.dynamicSampling.filter: thirds:raises raised KeyError on ")
