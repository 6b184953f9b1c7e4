"""What becomes of answers that are being made when new weights come, in a whole job, by `weightSync.interruption`."""

import json
from pathlib import Path

import pytest

from rljob_api.generations import FILE

from .job import RunningJob, make_simulated


@pytest.mark.parametrize("mode", ["Retract", "InPlace", "Drain"])
def test_answers_of_two_versions_are_as_the_mode_states(tmp_path: Path, mode: str) -> None:
    """Fewer answers run at once than two rollouts have, so that some always run when a version comes."""
    manifest = make_simulated(
        tmp_path,
        rollout={
            "numRollouts": 8,
            "batchSize": 4,
            "maxStaleness": 2,
            "concurrency": 16,
            "sampling": {"maxNewTokens": 200},
        },
        training={"globalBatchSize": 16, "microBatchSize": 16},
        algorithm={"kl": {"coefficient": 0}},
        weightSync={"interruption": mode},
    )
    # So many tokens that the one that ends an answer seldom comes.
    manifest["spec"]["model"]["config"] |= {"maxPositionEmbeddings": 256, "vocabSize": 4000}
    manifest["spec"]["simulation"] = {"generation": {"secondsPerToken": 0.002}}
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded()
        generations = [json.loads(line) for line in (job.out / FILE).read_text().splitlines()]
    versions = [{span["version"] for span in one["versions"]} for one in generations]
    assert len(set.union(*versions)) > 2, "the weights never moved"
    if mode == "Drain":
        assert {len(of_sample) for of_sample in versions} == {1}
    else:
        assert max(len(of_sample) for of_sample in versions) > 1, "no answer went on under new weights"
