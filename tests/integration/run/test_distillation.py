"""A student learns from a teacher, whose folder the role reference loads, again after a death, and over two ranks."""

import statistics
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.model import ModelSpec
from rljob_workers.models.building import EMBEDDING, build_config, initial_state, save_folder
from rljob_workers.models.tokenizers import build_tokenizer

from .job import RunningJob, at_leisure, kill, make_manifest

TOKENIZER = {"kind": "Character", "alphabet": "0123456789="}
LARGER = {"hiddenSize": 48, "numLayers": 3, "numAttentionHeads": 6, "seed": 5}
LOUD = 8.0
"""By so much its embedding outweighs its layers: it says the last character again, nearly always."""


def make_teacher(folder: Path) -> Path:
    """The folder of a model that is larger than the student, with the student's tokenizer."""
    model = ModelSpec.model_validate({"config": {"headDim": 8, "tokenizer": TOKENIZER, **LARGER}})
    tokenizer, state = build_tokenizer(model), initial_state(model, build_tokenizer(model))
    state[EMBEDDING] *= LOUD
    save_folder(folder, build_config(model, tokenizer), tokenizer, state)
    return folder


def make_student(folder: Path, **changes: dict[str, Any]) -> dict[str, Any]:
    """A job that distils. The KL term is there for its metric: it is too small to teach."""
    reference = {"modelPath": str(make_teacher(folder / "teacher")), **changes.pop("reference", {})}
    return make_manifest(
        folder,
        algorithm={"advantage": "Distillation", "kl": {"coefficient": 1e-9, "estimator": "K1", "weighted": True}},
        roles={"actorFwd": {}, "reference": reference, **changes.pop("roles", {})},
        **changes,
    )


def gaps(job: RunningJob) -> list[float]:
    """Step by step the mean of log student - log teacher over its tokens."""
    return [line["policy/kl_reference"] for line in job.metrics()]


def assert_nearer(job: RunningJob, share: float) -> None:
    """The gap has fallen to this share."""
    found = gaps(job)
    first, last = statistics.mean(found[:3]), statistics.mean(found[-3:])
    assert abs(last) < share * first, f"{first:.3f} nats from the teacher at first, {last:.3f} at the end: {found}"


def die_and_learn(folder: Path, manifest: dict[str, Any], rank: int) -> None:
    """A rank of the reference dies midway, which restarts it in place: nothing but its folder says what it was."""
    with RunningJob(folder, at_leisure(manifest, folder, seconds=0.2)) as job:
        job.wait_for_step(2)
        kill(job.rank_pid("reference", rank=rank))
        job.wait_for_event("RankExited", role="reference", scope="InPlace")
        job.assert_succeeded(epochs=1)
        assert_nearer(job, 0.5)
        assert not list((job.out / "checkpoints" / "reference").iterdir()), "no version of the policy is kept for it"


def test_a_student_comes_nearer_to_its_teacher(tmp_path: Path) -> None:
    training = {"optimizer": {"learningRate": 1e-2}}
    rollout = {"numRollouts": 16, "batchSize": 32, "samplesPerPrompt": 1}
    die_and_learn(tmp_path, make_student(tmp_path, rollout=rollout, training=training), 0)


@pytest.mark.long
def test_two_ranks_hold_a_teacher_together(tmp_path: Path) -> None:
    manifest = make_student(
        tmp_path,
        rollout={"numRollouts": 16},
        training={"optimizer": {"learningRate": 1e-2}},
        roles={"actor": {"backend": "Fsdp"}},
        reference={"ranksPerPod": 2, "shards": 2},
    )
    die_and_learn(tmp_path, manifest, 1)
