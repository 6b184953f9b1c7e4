"""Groups exchange their places: none waits for a slow one, and each is trained once, within the bound."""

from pathlib import Path
from typing import Any

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
