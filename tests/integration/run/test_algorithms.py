"""Losses, corrections and advantages other than the default, through a whole job."""

from pathlib import Path
from typing import Any

import pytest

from .job import RunningJob, make_manifest

EXAMPLE = Path(__file__).parents[3] / "examples" / "custom-algorithm"

ALGORITHMS: dict[str, dict[str, Any]] = {
    "Gspo and IcePop": {
        "loss": "Gspo",
        "lossAggregation": "SequenceMean",
        "correction": {"kind": "IcePop", "floor": 0.9, "cap": 1.1},
    },
    "the user's own": {"loss": "algorithm:cispo", "advantage": "algorithm:centred", "path": str(EXAMPLE)},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_job_trains_by_it(tmp_path: Path, name: str) -> None:
    """In two optimizer steps of a rollout: after the first the ratio is no longer 1."""
    training = {"globalBatchSize": 16}
    manifest = make_manifest(
        tmp_path,
        rollout={"numRollouts": 3, "reward": {"characterMatch": {}}},
        algorithm=ALGORITHMS[name],
        training=training,
    )
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded()
        steps = job.metrics()
    assert len(steps) == 3
    for step in steps:
        assert step["optimizer/grad_norm"] > 0.0
        assert step["policy/ratio_max"] >= step["policy/ratio"] > 0.0
    assert any(step["policy/ratio_max"] != 1.0 for step in steps)
