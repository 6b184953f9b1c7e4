"""Jobs of the backend Megatron: four ranks hold one model; each of them killed and stopped is one restart, by name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.names import Role
from rljob_api.spec import RLJob
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.trainers import build_forward_model
from rljob_workers.trainers.data_parallel import SingleRank
from tests.integration.run.job import RunningJob, at_leisure, kill, make_manifest, stop
from tests.integration.run.test_models import save_model
from tests.integration.run.test_sglang import SMALL, a_folder

FOUR = tuple(f"actor-0.{rank}" for rank in range(4))
TENSOR_AND_PIPELINE = {"backend": "Megatron", "ranksPerPod": 4, "parallelism": {"tensor": 2, "pipeline": 2}}


def laid_out(folder: Path, actor: dict[str, Any], **changes: dict[str, Any]) -> dict[str, Any]:
    """A job whose actor's ranks share a model, and whose other models are computed by two ranks and by Fsdp."""
    roles = {
        "actor": actor,
        "actorFwd": {"backend": "Megatron", "ranksPerPod": 2, "parallelism": {"tensor": 2}},
        "reference": {"backend": "Fsdp"},
        **changes.pop("roles", {}),
    }
    return make_manifest(folder, roles=roles, **changes)


def restarts(job: RunningJob) -> list[str]:
    """The message of each restart of the job."""
    return [event["message"] for event in job.events() if event.get("scope") == "Global"]


def suffer(job: RunningJob, do: Callable[[int], None], rank: int) -> None:
    """The rank is named, and all begin again."""
    job.wait_for("all to be ready", job.ready)
    job.wait_for_step(job.step() + 1)
    known = len(restarts(job))
    do(job.rank_pid("actor", 0, rank))
    job.wait_for(f"a restart for {FOUR[rank]}", lambda: len(restarts(job)) > known)
    message = "was killed by SIGKILL" if do is kill else "has not beaten in"
    assert restarts(job)[-1].startswith(f"{FOUR[rank]} {message}"), job.stated()
    assert "more at the same time" not in restarts(job)[-1]


def survive(job: RunningJob, num_faults: int) -> None:
    """Each was one restart, and nothing was trained twice or not at all."""
    job.assert_succeeded()
    assert len(restarts(job)) == num_faults, job.stated()
    job.assert_epoch(num_faults + 1)


def assert_one_reference(job: RunningJob) -> None:
    """Of a job that learns slowly: its policy stays near version 0, against which rows are measured."""
    kl = [line["policy/kl_reference"] for line in job.metrics()]
    assert all(0 <= value < 0.5 for value in kl), f"rows were measured against another version: {kl}"


def armed(folder: Path, **windows: int) -> dict[str, str]:
    """The environment of a job whose ranks die in these windows, each in the given pass."""
    marks = folder / "failpoints"
    marks.mkdir()
    given = ",".join(f"{name.replace('__', '.')}={count}" for name, count in windows.items())
    return {"RLJOB_FAILPOINTS": given, "RLJOB_FAILPOINTS_DIR": str(marks)}


def suffered(job: RunningJob, name: str, number: int) -> None:
    """A rank of the actor died in the window, which was restart `number`."""
    job.wait_for(f"the death in {name}", lambda: len(restarts(job)) == number)
    assert (job.out.parent / f"failpoints/{name}.fired").exists(), job.stated()
    assert any(restarts(job)[-1].startswith(f"{rank} was killed by SIGKILL") for rank in FOUR), job.stated()
    assert "warn" not in restarts(job)[-1], "the rank has left a library's warning as its last line"


PATIENCE = {"heartbeatTimeoutSeconds": 10, "stallTimeoutSeconds": 120, "threshold": 20, "maxGlobalRestarts": 20}


def rewards(job: RunningJob, first: int, last: int) -> float:
    """The mean reward of rollouts [first, last), as they were trained at last."""
    of_step = {line["step"]: line["reward"] for line in job.metrics()}
    return float(sum(of_step[step] for step in range(first, last))) / (last - first)


def few_prompts(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The same job, of four prompts: they are learned within some tens of rollouts."""
    prompts = folder / "few.jsonl"
    prompts.write_text("".join(f'{{"prompt": "{n}=", "label": "{n}"}}\n' for n in (17, 23, 42, 88)))
    return {**manifest, "spec": {**manifest["spec"], "data": {"prompts": str(prompts)}}}


def that_learns(folder: Path, actor: dict[str, Any]) -> dict[str, Any]:
    """Within its 30 rollouts."""
    training = {
        "globalBatchSize": 64,
        "microBatchSize": 16,
        "optimizer": {"learningRate": 0.01, "beta2": 0.999, "maxGradNorm": 0},
    }
    manifest = laid_out(folder, actor, rollout={"samplesPerPrompt": 8}, training=training, restartPolicy=PATIENCE)
    return few_prompts(folder, manifest)


OVER_TWO = {"backend": "Megatron", "ranksPerPod": 2, "parallelism": {"tensor": 2}}


def test_a_model_over_two_ranks_outlives_deaths(tmp_path: Path) -> None:
    manifest = laid_out(tmp_path, OVER_TWO, rollout={"numRollouts": 12}, restartPolicy=PATIENCE)
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path), armed(tmp_path, publish__part_staged=4)) as job:
        suffered(job, "publish.part_staged", 1)
        suffer(job, kill, 1)
        survive(job, 2)


@pytest.mark.long
def test_a_model_over_two_ranks_learns(tmp_path: Path) -> None:
    with RunningJob(tmp_path, at_leisure(that_learns(tmp_path, OVER_TWO), tmp_path, 0.0)) as job:
        survive(job, 0)
        assert rewards(job, 25, 30) > rewards(job, 0, 5) + 0.1


@pytest.mark.long
def test_a_model_over_four_ranks_learns_and_outlives_each_kind_of_death(tmp_path: Path) -> None:
    """Within a publication and a save, of which every rank has its part; then a rank of each stage, wherever it is."""
    env = armed(tmp_path, publish__part_staged=10, checkpoint__part_written=10)
    with RunningJob(tmp_path, at_leisure(that_learns(tmp_path, TENSOR_AND_PIPELINE), tmp_path), env) as job:
        suffered(job, "publish.part_staged", 1)
        suffered(job, "checkpoint.part_written", 2)
        suffer(job, kill, 3)
        suffer(job, stop, 0)
        survive(job, 4)
        assert rewards(job, 25, 30) > rewards(job, 0, 5) + 0.1


def test_a_layout_that_does_not_fit_is_refused_with_one_sentence_by_validate_and_by_a_rank(tmp_path: Path) -> None:
    """A rank says so of a folder that only pods can read."""
    fourths = {"backend": "Megatron", "ranksPerPod": 4, "parallelism": {"tensor": 4}}
    manifest = laid_out(tmp_path, fourths, roles={"actorFwd": fourths})
    manifest["spec"]["model"] = {"path": str(save_model(tmp_path / "model", factor=1.0))}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest))
    command = [sys.executable, "-m", "rljob_cli", "validate", str(tmp_path / "job.yaml")]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 64, refused
    for field in ("actor", "actorFwd"):
        assert f"spec.{refusal(field, 4, heads=2)}" in refused.stdout + refused.stderr
    spec = RLJob.model_validate(manifest).spec
    with pytest.raises(ValueError, match="parallelism") as error:
        build_forward_model(spec, build_tokenizer(spec.model), Role.ACTOR_FWD, SingleRank())
    assert str(error.value) == refusal("actorFwd", 4, heads=2)


def refusal(role: str, tensor: int, *, heads: int) -> str:
    """The sentence about tensor ranks that are more than the heads of keys."""
    return (
        f"roles.{role}.parallelism.tensor: {tensor} does not divide num_key_value_heads {heads} of its config.json. "
        f"Give a divisor of {heads}."
    )


@pytest.mark.long
def test_ranks_that_find_another_folder_than_was_validated_end_the_job_by_that_sentence(tmp_path: Path) -> None:
    halves = {"backend": "Megatron", "ranksPerPod": 2, "parallelism": {"tensor": 2}}
    manifest = laid_out(tmp_path, halves, roles={"actorFwd": {"backend": "Fsdp"}})
    model = save_model(tmp_path / "model", factor=1.0)
    manifest["spec"]["model"] = {"path": str(model)}
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path)) as job:
        job.wait_for_step(1)
        described = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**described, "num_key_value_heads": 1}))
        kill(job.rank_pid("actor"))
        assert job.finish() == 64, job.stated()
        assert job.events()[-1]["message"] == f"actor-0: {refusal('actor', 2, heads=1)}"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("do", [kill, stop])
def test_each_of_the_four(tmp_path: Path, do: Callable[[int], None]) -> None:
    """After a death within a collective of Megatron's."""
    manifest = laid_out(tmp_path, TENSOR_AND_PIPELINE, rollout={"numRollouts": 40}, restartPolicy=PATIENCE)
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path), armed(tmp_path, collective__section=60)) as job:
        suffered(job, "collective.section", 1)
        for rank in range(4):
            suffer(job, do, rank)
        survive(job, 5)
        assert_one_reference(job)


SAVES = {"checkpoint.begun": 2, "checkpoint.part_written": 15}
PUBLICATIONS = {"publish.before": 7, "publish.part_staged": 18, "publish.after": 29}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("windows", [SAVES, PUBLICATIONS], ids=["within a save", "within a publication"])
def test_a_death_in_a_window_that_all_ranks_pass(tmp_path: Path, windows: Mapping[str, int]) -> None:
    env = armed(tmp_path, **{name.replace(".", "__"): count for name, count in windows.items()})
    manifest = laid_out(tmp_path, TENSOR_AND_PIPELINE, checkpoint={"everySteps": 1}, restartPolicy=PATIENCE)
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path), env) as job:
        for number, name in enumerate(windows, start=1):
            suffered(job, name, number)
        survive(job, len(windows))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_rank_that_hangs_is_waited_for_as_long_as_the_job_states(tmp_path: Path) -> None:
    """It goes on beating, as do those that wait for it in groups of Megatron, whose own deadline is half an hour."""
    env = armed(tmp_path)
    env["RLJOB_FAILPOINTS"] = "collective.section=hang:40"
    policy = {**PATIENCE, "heartbeatTimeoutSeconds": 15, "collectiveTimeoutSeconds": 16}
    manifest = laid_out(tmp_path, TENSOR_AND_PIPELINE, restartPolicy=policy)
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path), env) as job:
        job.wait_for("a restart", lambda: len(restarts(job)) > 0, seconds=120)
        message = restarts(job)[0]
        (named,) = [rank for rank in FOUR if message.startswith(f"{rank} has not come out of collective ")]
        others = [rank for rank in FOUR if "could not go through" in (job.out / f"logs/{rank}.log").read_text()]
        assert others, "those that wait for it say so, or are ended by the restart"
        assert named not in others, job.stated()
        survive(job, 1)


@pytest.mark.long
def test_tokens_that_are_cut_over_ranks(tmp_path: Path) -> None:
    actor = {"backend": "Megatron", "ranksPerPod": 4, "parallelism": {"context": 2, "tensor": 2}}
    manifest = laid_out(tmp_path, actor, restartPolicy=PATIENCE)
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path)) as job:
        suffer(job, kill, 2)
        survive(job, 1)
        assert_one_reference(job)


@pytest.mark.long
def test_a_critic_and_a_policy_of_two_ranks_each(tmp_path: Path) -> None:
    """One record has both; each death of either restarts both from it."""
    halves = {"backend": "Megatron", "ranksPerPod": 2, "parallelism": {"tensor": 2}}
    manifest = laid_out(
        tmp_path,
        halves,
        roles={"critic": halves},
        algorithm={"advantage": "Gae", "kl": {"coefficient": 0.001}},
        restartPolicy=PATIENCE,
    )
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path)) as job:
        suffer(job, kill, 1)
        job.wait_for("all to be ready", job.ready)
        job.wait_for_step(job.step() + 1)
        kill(job.rank_pid("critic", 0, 0))
        job.wait_for("a restart for critic-0.0", lambda: len(restarts(job)) == 2)
        assert restarts(job)[-1].startswith("critic-0.0 was killed by SIGKILL"), job.stated()
        survive(job, 2)
        record = json.loads((job.out / "checkpoints/record.json").read_text())
        folder = job.out / "checkpoints" / record["folder"]
        assert len(list(folder.glob("actor-*.safetensors"))) == 2
        assert len(list((folder / "critic").glob("critic-*.safetensors"))) == 2
        assert all({"critic/loss", "critic/grad_norm"} <= line.keys() for line in job.metrics())


SHAPES: list[dict[str, Any]] = [
    TENSOR_AND_PIPELINE,
    {"backend": "Megatron", "replicas": 2, "parallelism": {"pipeline": 2}},
    {"backend": "Fsdp", "ranksPerPod": 2},
    {"backend": "Megatron", "ranksPerPod": 2},
    {"backend": "Flat"},
    {"backend": "Megatron", "ranksPerPod": 2, "parallelism": {"tensor": 2}},
]
"""One after the other; without parallelism each rank has a whole model, and a shard of the optimizer."""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_folder_is_gone_on_with_in_any_layout_and_by_other_backends(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", factor=1.0)

    def manifest(number: int) -> dict[str, Any]:
        made = laid_out(tmp_path, SHAPES[number], rollout={"numRollouts": 24}, roles={"actorFwd": {"backend": "Fsdp"}})
        made["spec"]["model"] = {"path": str(model)}
        return at_leisure(made, tmp_path)

    with RunningJob(tmp_path, manifest(0)) as job:
        for number in range(len(SHAPES)):
            if number:
                job.rewrite(manifest(number))
                job.start()
            job.wait_for_step(job.step() + 2)
            if number + 1 < len(SHAPES):
                job.interrupt()
        job.assert_succeeded(epochs=len(SHAPES))
        assert_one_reference(job)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_quickstarts_shape_learns(tmp_path: Path, seed: int) -> None:
    quickstart = Path(__file__).resolve().parents[3] / "examples/quickstart.yaml"
    manifest = yaml.safe_load(quickstart.read_text())
    spec = manifest["spec"]
    spec["data"]["prompts"] = str(quickstart.parent / spec["data"]["prompts"])
    spec["model"]["config"]["seed"] = spec["seed"] = seed
    spec["rollout"]["numRollouts"] = 40
    spec["roles"] |= laid_out(tmp_path, TENSOR_AND_PIPELINE)["spec"]["roles"]
    with RunningJob(tmp_path, manifest) as job:
        assert job.finish(1500) == 0, job.stated()
        begin, end = rewards(job, 0, 5), rewards(job, 35, 40)
        print(f"seed {seed}: reward {begin:.2f} -> {end:.2f}")  # noqa: T201 - the figures, shown with -s
        assert end > begin + 0.2


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_samples_of_sglang_are_trained_by_four_ranks(tmp_path: Path) -> None:
    """It gets their weights in parts, and proves each version by log-probs of its own."""
    manifest = laid_out(tmp_path, TENSOR_AND_PIPELINE, rollout={"numRollouts": 10})
    manifest["spec"]["roles"]["rollout"] = {"engine": {"kind": "SGLang"}}
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded(900, epochs=1)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_experts_are_dealt_over_ranks(tmp_path: Path) -> None:
    """Only SGLang serves them."""
    from transformers import Qwen3MoeConfig

    config = Qwen3MoeConfig(**SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    actor = {"backend": "Megatron", "ranksPerPod": 2, "parallelism": {"expert": 2}}
    manifest = laid_out(tmp_path, actor, rollout={"numRollouts": 10}, roles={"actorFwd": {"backend": "Fsdp"}})
    manifest["spec"]["model"] = {"path": a_folder(tmp_path / "model", config)}
    manifest["spec"]["roles"]["rollout"] = {"engine": {"kind": "SGLang"}}
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded(900, epochs=1)
