"""The examples for GPUs: right but for the model, which is to be fetched, and dealt as their comments say."""

import json
import shutil
import struct
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from rljob_cli.main import cli
from tests.unit.api.test_device_memory import QWEN3_4B, QWEN3_30B_A3B, QWEN3_32B, stored

EXAMPLES = Path(__file__).parents[3] / "examples"
ONE_MACHINE, TWO_NODES = "qwen3-4b-8xh100.yaml", "qwen3-4b-two-nodes.yaml"
OF_EXPERTS, DENSE = "qwen3-30b-a3b-two-nodes.yaml", "qwen3-32b-two-nodes.yaml"
ALL = (ONE_MACHINE, TWO_NODES, OF_EXPERTS, DENSE)
MODELS = {"Qwen3-4B": QWEN3_4B, "Qwen3-30B-A3B": QWEN3_30B_A3B, "Qwen3-32B": QWEN3_32B}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the examples, with models whose files say all but their weights."""
    copy = tmp_path / "examples"
    shutil.copytree(EXAMPLES, copy, ignore=shutil.ignore_patterns("models"))
    for name, described in MODELS.items():
        model = copy / "models" / name
        model.mkdir(parents=True)
        head = json.dumps({name: {"shape": shape} for name, shape in stored(described).items()}).encode()
        (model / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)
        (model / "config.json").write_text(json.dumps(described))
        (model / "tokenizer.json").write_text("{}")
    for mounted in ALL:
        text = (copy / mounted).read_text()
        (copy / mounted).write_text(text.replace("path: /models/", f"path: {copy}/models/"))
    return copy


def rljob(*arguments: str, devices: int = 0) -> Result:
    environment = {"CUDA_VISIBLE_DEVICES": None, "RLJOB_DEVICES": f"fake:{devices}"}
    done = CliRunner().invoke(cli, list(arguments), env=environment)
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize("name", ALL)
def test_they_are_valid_once_the_model_is_there(folder: Path, name: str) -> None:
    done = rljob("validate", str(folder / name))
    assert done.stdout == f"{folder / name} is valid.\n"
    assert "warning: " not in done.stderr


@pytest.mark.parametrize("name", ALL)
def test_without_the_model_they_state_it_and_nothing_else(name: str) -> None:
    done = CliRunner().invoke(cli, ["validate", str(EXAMPLES / name)], env={"RLJOB_DEVICES": "fake:8"})
    if "is valid." in done.output:
        pytest.skip("the model was fetched")
    assert done.exit_code == 64
    (line,) = [line for line in done.output.splitlines() if not line.startswith("not checked here: ")]
    assert line.startswith(f"{EXAMPLES / name}:")
    assert ": spec.model.path: " in line
    assert line.endswith(" is not a folder. Give the folder of a Hugging Face checkpoint.")
    assert any(f"models/{model} is not" in line for model in MODELS)


def test_on_one_machine_four_gpus_train_and_four_generate(folder: Path) -> None:
    done = rljob("run", str(folder / ONE_MACHINE), "--dry-run", devices=8)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "qwen3-4b: 12 processes in 2 pods; 8 of 8 devices by RLJOB_DEVICES=fake:8"
    rows = [line.split()[:2] for line in lines]
    for index in range(4):
        assert [f"actor-0.{index}", f"fake-{index}"] in rows
        assert [f"rollout-0.engine.{index}", f"fake-{4 + index}"] in rows
    assert (
        "engine SGLang, dtype bfloat16, headDtype float32, threads 1, tensorParallel 1, args --mem-fraction-static=0.85"
        in done.output
    )
    assert " are needed and it has " not in done.output


def test_on_two_nodes_eight_train_and_eight_generate(folder: Path) -> None:
    plan = json.loads(
        rljob("run", str(folder / TWO_NODES), "--dry-run", "--output", "json", devices=16).stdout.splitlines()[-1]
    )
    computing = {process["name"]: process["devices"] for process in plan["processes"] if process["devices"]}
    assert computing == {f"actor-0.{index}": [f"fake-{index}"] for index in range(8)} | {
        f"rollout-0.engine.{index}": [f"fake-{8 + index}"] for index in range(8)
    }
    assert min(device["leftBytes"] for device in plan["devices"] if device["leftBytes"] is not None) > 0


@pytest.mark.parametrize(
    ("name", "models", "expert_ranks", "gib"),
    [pytest.param(OF_EXPERTS, 4, 8, 37, id="experts"), pytest.param(DENSE, 2, 1, 50, id="dense")],
)
def test_a_stage_of_a_large_model_is_a_pod_and_fits(
    folder: Path, name: str, models: int, expert_ranks: int, gib: int
) -> None:
    done = rljob("run", str(folder / name), "--dry-run", "--output", "json", devices=24)
    plan = json.loads(done.stdout.splitlines()[-1])
    ranks = [one for one in plan["processes"] if one["name"].startswith("actor-")]
    assert [one["place"]["pipeline"] for one in ranks] == [0] * 8 + [1] * 8
    assert {one["pod"] for one in ranks if one["place"]["pipeline"] == 0} == {"actor-0"}
    assert {one["settings"]["models"] for one in ranks} == {models} == {1 + max(one["place"]["data"] for one in ranks)}
    assert sorted({one["place"]["expert"] for one in ranks}) == list(range(expert_ranks))
    needed = max(one["memory"]["peak"] for one in ranks) / 2**30
    assert round(needed) == gib
    assert f"by formula: {gib} of 80 GiB" in (folder / name).read_text()
    assert min(device["leftBytes"] for device in plan["devices"] if device["leftBytes"] is not None) > 0


def test_on_a_cluster_both_pods_mount_the_model_and_ask_for_a_node(folder: Path) -> None:
    objects = yaml.safe_load_all(rljob("render", "--kubernetes", str(folder / TWO_NODES)).output)
    pods = {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment"}
    for role in ("actor", "rollout"):
        pod = pods[f"qwen3-4b-{role}"]
        (worker,) = [container for container in pod["containers"] if container["name"] == "worker"]
        assert worker["resources"]["limits"]["nvidia.com/gpu"] == "8"
        assert {"name": "models", "mountPath": "/models", "readOnly": True} in worker["volumeMounts"]
        memory = next(volume for volume in pod["volumes"] if volume["name"] == "shm")
        assert memory["emptyDir"]["sizeLimit"] == worker["resources"]["limits"]["memory"]
