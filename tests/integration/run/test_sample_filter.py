"""A filter leaves samples out of the loss: each is dealt and counted once all the same, on two ranks, one dies."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rljob_cli.jobs.sample_log import read_lines, standing_samples

from .job import HURRY, RunningJob, kill, make_simulated

ROLLOUTS = 6

OWN = f"""
import time
from pathlib import Path

def score(answers):
    until = time.monotonic() + 1.0
    while time.monotonic() < until and not Path(__file__).with_name("{HURRY}").exists():
        time.sleep(0.02)
    return [int(answer.label) * (answer.index + 1) % 4 / 4 for answer in answers]

def best(sample):
    assert len(sample.advantages) == sample.response_length
    return sample.reward >= 0.75 or sample.staleness > 1

def raises(sample):
    raise KeyError("entropy")
"""


def make_job(folder: Path, function: str = "best") -> dict[str, Any]:
    (folder / "cuts.py").write_text(OWN)
    return make_simulated(
        folder,
        rollout={"numRollouts": ROLLOUTS, "reward": {"custom": {"function": "cuts:score", "path": str(folder)}}},
        algorithm={"sampleFilter": f"cuts:{function}", "path": str(folder)},
        roles={"reference": {}, "actorFwd": {}, "advantages": {}, "actor": {"replicas": 2}},
    )


def test_each_step_counts_what_was_left_out_whichever_rank_had_it(tmp_path: Path) -> None:
    with RunningJob(tmp_path, make_job(tmp_path)) as job:
        job.wait_for_step(1)
        kill(job.rank_pid("actor", 1))
        job.wait_for_event("RankExited", role="actor", scope="Global")
        job.assert_succeeded()
        job.assert_epoch(2)
        left_out = defaultdict(list)
        for line in standing_samples(read_lines(job.out / "samples.jsonl")):
            left_out[line.step].append(line.reward < 0.75)
        steps = {step["step"]: step for step in job.metrics()}  # the last of those that were trained again
        assert sorted(steps) == list(range(ROLLOUTS))
        for r, step in steps.items():
            assert step["samples/filtered_share"] == pytest.approx(sum(left_out[r]) / len(left_out[r]))


def test_a_filter_that_raises_fails_the_job_with_its_name(tmp_path: Path) -> None:
    with RunningJob(tmp_path, make_job(tmp_path, "raises")) as job:
        assert ": algorithm.sampleFilter: cuts:raises raised KeyError on sample " in job.refused()[0]
