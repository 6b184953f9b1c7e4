"""Groups exchange their places: none waits for a slow one, and each is trained once, within the bound."""

from pathlib import Path
from typing import Any

import pytest

from rljob_cli.jobs.sample_log import read_lines, standing_samples

from .job import RunningJob, kill, make_simulated

ROLLOUTS = 16

STALENESS = 2

REWARD = """
import time

def score(answers):
    time.sleep(1.0 if int(answers[0].label) % 7 == 0 else 0.05)
    return [float(answer.index % 2) for answer in answers]
"""


def make_job(folder: Path, **rollout: Any) -> dict[str, Any]:
    """One prompt in seven takes twenty times as long."""
    (folder / "sevenths.py").write_text(REWARD)
    reward = {"custom": {"function": "sevenths:score", "path": str(folder)}}
    return make_simulated(
        folder, rollout={"numRollouts": ROLLOUTS, "maxStaleness": STALENESS, "reward": reward, **rollout}
    )


@pytest.mark.long  # schedules of the queue show it of groups that swap, the other test of a whole job
def test_slow_groups_are_trained_later_and_every_group_once_though_its_rollout_dies(tmp_path: Path) -> None:
    with RunningJob(tmp_path, make_job(tmp_path, order="Swap")) as job:
        job.wait_for_step(3)
        kill(job.rank_pid("rollout"))
        job.wait_for_event("RankExited", role="rollout", scope="Global")
        report = job.assert_succeeded(epochs=2)
        assert 0 < report.exchanged.later <= report.exchanged.earlier
        assert report.exchanged.furthest <= STALENESS
        assert report.max_staleness <= STALENESS
        begun: dict[int, dict[int, int]] = {}
        for line in standing_samples(read_lines(job.out / "samples.jsonl")):
            assert line.drawn_for is not None
            begun.setdefault(line.step, {})[line.group] = line.drawn_for
        steps = {step["step"]: step for step in job.metrics()}  # the last of those that were trained again
        for r, step in steps.items():
            of_step = list(begun[r].values())
            assert step["groups/put_off"] == sum(rollout < r for rollout in of_step) / len(of_step)
            assert step["groups/brought_forward"] == sum(rollout > r for rollout in of_step) / len(of_step)


def test_carried_groups_go_on_beyond_the_bound_and_learn_from_what_is_within_it(tmp_path: Path) -> None:
    """Answers have a long tail: each token is the last with a chance of one in forty."""
    manifest = make_simulated(
        tmp_path,
        rollout={
            "numRollouts": ROLLOUTS,
            "batchSize": 4,
            "samplesPerPrompt": 2,
            "maxStaleness": 1,
            "order": "Swap",
            "partial": {"saveSeconds": 1},
            "overSampling": 1.5,
            "sampling": {"maxNewTokens": 160},
        },
        training={"globalBatchSize": 8, "microBatchSize": 8},
        checkpoint={"everySteps": 4},
        simulation={"generation": {"secondsPerToken": 0.02}},
    )
    manifest["spec"]["model"]["config"] |= {"maxPositionEmbeddings": 256, "vocabSize": 40}
    with RunningJob(tmp_path, manifest) as job:
        job.wait_for_step(4)
        kill(job.rank_pid("rollout"))
        job.wait_for_event("RankExited", role="rollout", scope="Global")
        report = job.assert_succeeded(epochs=2)
        assert report.exchanged.furthest > 1, "no group was carried beyond the bound"
        assert report.max_staleness == 1
        shares = [step["staleness/too_old_share"] for step in job.metrics()]
        assert 0 < sum(shares) / len(shares) < 0.5
