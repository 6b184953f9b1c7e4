"""Every way to cut a rollout into optimizer steps, with a kill in the middle: each row is trained once per pass."""

from pathlib import Path
from typing import Any

import pytest

from .job import RunningJob, at_leisure, kill, make_manifest, make_simulated

ALL_AT_ONCE = {"epochsPerRollout": 2, "globalBatchSize": 16, "itersPerTrainUpdate": 2, "microBatchSize": 3}
"""3 divides none of the others: it only bounds."""
SHAPES = (
    pytest.param(ALL_AT_ONCE, id="two passes of two steps in two slices each"),
    pytest.param({"epochsPerRollout": 2}, id="two passes over every rollout", marks=pytest.mark.long),
    pytest.param({"itersPerTrainUpdate": 2}, id="an optimizer step in two slices", marks=pytest.mark.long),
    pytest.param({"globalBatchSize": 16}, id="two optimizer steps a rollout", marks=pytest.mark.long),
)


@pytest.mark.parametrize("training", SHAPES)
def test_a_kill_loses_and_repeats_nothing(tmp_path: Path, training: dict[str, Any]) -> None:
    manifest = make_simulated(tmp_path, rollout={"numRollouts": 30}, training=training)
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path)) as job:
        job.wait_for_step(3)
        kill(job.rank_pid("actor"))
        job.wait_for_event("RankExited", role="actor", scope="Global")
        job.wait_for("the second epoch to train", lambda: any(line["epoch"] == 2 for line in job.metrics()))
        kill(job.rank_pid("advantages"))
        job.assert_succeeded()
        keys = [(line["epoch"], line["step"]) for line in job.metrics()]
        assert len(keys) == len(set(keys)), "a step was reported twice in one epoch"
        assert {step for _, step in keys} == set(range(30))


def test_rows_are_measured_against_the_last_multiple_of_the_interval(tmp_path: Path) -> None:
    """KL is 0 exactly where reference and policy are the same version: at every third rollout."""
    manifest = make_manifest(tmp_path, rollout={"numRollouts": 30}, training={"refUpdateInterval": 3})
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path)) as job:
        job.wait_for_step(4)
        kill(job.rank_pid("reference"))
        job.wait_for_event("RankExited", role="reference", scope="InPlace")
        kill(job.rank_pid("actor"))
        job.wait_for_event("RankExited", role="actor", scope="Global")
        job.wait_for("the second epoch to train", lambda: any(line["epoch"] == 2 for line in job.metrics()))
        kill(job.process.pid)
        job.process.wait(240)
        job.wait_gone()
        job.start()
        job.assert_succeeded()
        kl = {(line["epoch"], line["step"]): line["policy/kl_reference"] for line in job.metrics()}
        assert {epoch for epoch, _ in kl} == {1, 2, 3}
        wrong = {key: value for key, value in kl.items() if (abs(value) < 1e-8) != (key[1] % 3 == 0)}
        assert wrong == {}
