"""What `rljob run --dry-run` prints for eight devices that are not there, and what it says of nine."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from rljob_api.spec import RLJobSpec
from rljob_cli.checks.row_lengths import row_lengths
from rljob_cli.main import cli
from tests.unit.api.manifests import changed
from tests.unit.api.test_device_memory import QWEN3_4B, stored

EIGHT = {"RLJOB_DEVICES": "fake:8"}
JOB = {
    "apiVersion": "rljob.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "qwen3-4b"},
    "spec": {
        "model": {"path": "model", "dtype": "bfloat16"},
        "data": {"reasoningGym": {"dataset": "letter_counting"}},
        "algorithm": {"kl": {"coefficient": 0.001}},
        "rollout": {"numRollouts": 9, "batchSize": 64, "samplesPerPrompt": 8, "sampling": {"maxNewTokens": 4096}},
        "training": {"globalBatchSize": 512, "maxTokensPerMicroBatch": 16384},
        "roles": {
            "actor": {"gpus": 4},
            "rollout": {"gpus": 2, "engine": {"kind": "Torch"}},
            "actorFwd": {"gpus": 1},
            "reference": {"gpus": 1},
            "advantages": {},
        },
    },
}
SEEN = """\
qwen3-4b: 11 processes in 5 pods; 8 of 8 devices by RLJOB_DEVICES=fake:8

process             devices  rank  weights  gradients  optimizer   copies  activations  together
actor-0.0           fake-0    0/4  3.7 GiB    3.7 GiB    7.5 GiB  3.8 GiB      6.0 GiB  24.9 GiB
actor-0.1           fake-1    1/4  3.7 GiB    3.7 GiB    7.5 GiB  3.8 GiB      6.0 GiB  24.9 GiB
actor-0.2           fake-2    2/4  3.7 GiB    3.7 GiB    7.5 GiB  3.8 GiB      6.0 GiB  24.9 GiB
actor-0.3           fake-3    3/4  3.7 GiB    3.7 GiB    7.5 GiB  3.8 GiB      6.0 GiB  24.9 GiB
rollout-0.0         CPU       0/2
rollout-0.engine.0  fake-4         8.9 GiB          -          -  8.9 GiB            -  17.9 GiB
rollout-0.1         CPU       1/2
rollout-0.engine.1  fake-5         8.9 GiB          -          -  8.9 GiB            -  17.9 GiB
actor_fwd-0.0       fake-6    0/1  7.5 GiB          -          -        -      1.4 GiB   8.9 GiB
reference-0.0       fake-7    0/1  7.5 GiB          -          -        -      1.4 GiB   8.9 GiB
advantages-0.0      CPU       0/1

device    memory    needed      left       for KV  processes
fake-0  80.0 GiB  24.9 GiB  55.1 GiB               actor-0.0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a model whose files say all but their weights."""
    model = tmp_path / "model"
    model.mkdir()
    head = json.dumps({name: {"shape": shape} for name, shape in stored(QWEN3_4B).items()}).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)
    (model / "config.json").write_text(json.dumps(QWEN3_4B))
    (model / "tokenizer.json").write_text("{}")
    return tmp_path


def run_dry(folder: Path, environment: dict[str, str], *options: str, roles: dict[str, Any] | None = None) -> Result:
    spec: dict[str, Any] = JOB["spec"]  # type: ignore[assignment] # a job's
    job = {**JOB, "spec": {**spec, "roles": {**spec["roles"], **(roles or {})}}}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    command = ["run", str(folder / "job.yaml"), "--dry-run", *options]
    return CliRunner().invoke(cli, command, env={"CUDA_VISIBLE_DEVICES": None, **environment})


def test_a_teacher_has_the_memory_of_its_own_model(folder: Path) -> None:
    """Of half the layers: 4.02 x 10^9 parameters, of which 36 layers have 3.63."""
    teacher = folder / "teacher"
    teacher.mkdir()
    half = {**QWEN3_4B, "num_hidden_layers": 18}
    shapes = {name: shape for name, shape in stored(QWEN3_4B).items() if not _is_of_a_late_layer(name)}
    head = json.dumps({name: {"shape": shape} for name, shape in shapes.items()}).encode()
    (teacher / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)
    (teacher / "config.json").write_text(json.dumps(half))
    done = run_dry(folder, EIGHT, "--output", "json", roles={"reference": {"gpus": 1, "modelPath": "teacher"}})
    assert done.exit_code == 0, done.output
    processes = {process["name"]: process for process in json.loads(done.output)["processes"]}
    whole, reference = processes["actor_fwd-0.0"], processes["reference-0.0"]
    assert reference["settings"] == {"model": str(teacher), **whole["settings"]}
    assert reference["memory"]["weights"] == 2 * (4_022_468_096 + 151936 * 2560 + 2560) // 2


def _is_of_a_late_layer(name: str) -> bool:
    place = name.split(".")
    return "layers" in place and int(place[place.index("layers") + 1]) >= 18


def test_eight_devices_have_their_processes_and_their_memory(folder: Path) -> None:
    done = run_dry(folder, EIGHT)
    assert done.exit_code == 0, done.output
    assert done.output.startswith(SEEN)
    assert "fake-4  80.0 GiB  17.9 GiB  62.1 GiB  452k tokens  rollout-0.engine.0\n" in done.output
    assert "rowsOfMicroBatch 3, tokensOfMicroBatch 16384, activationCheckpointing on" in done.output
    assert "checkpointEverySteps 10, " in done.output
    assert not (folder / "rljob-out").exists()


LAID_OUT = {
    "actor": {"gpus": 8, "backend": "Megatron", "parallelism": {"tensor": 2, "pipeline": 2}},
    "rollout": {"gpus": 1, "engine": {"kind": "Torch"}},
    "actorFwd": {"gpus": 4, "parallelism": {"tensor": 2}},
    "reference": {"gpus": 1, "backend": "Fsdp"},
}
PLACES = """\
process           devices  rank  dp tp pp cp ep  weights  gradients  optimizer   copies  activations  together
actor-0.0         fake-0    0/8   0  0  0  0  0  2.1 GiB    4.1 GiB    6.2 GiB        -     45.1 GiB  57.4 GiB
actor-0.1         fake-1    1/8   0  1  0  0  0  2.1 GiB    4.1 GiB    6.2 GiB        -     45.1 GiB  57.4 GiB
actor-0.2         fake-2    2/8   1  0  0  0  0  2.1 GiB    4.1 GiB    6.2 GiB        -     45.1 GiB  57.4 GiB
actor-0.3         fake-3    3/8   1  1  0  0  0  2.1 GiB    4.1 GiB    6.2 GiB        -     45.1 GiB  57.4 GiB
actor-0.4         fake-4    4/8   0  0  1  0  0  2.1 GiB    4.1 GiB    6.2 GiB        -     22.7 GiB  35.1 GiB
"""


def test_ranks_that_share_a_model_have_their_places_and_their_stages_memory(folder: Path) -> None:
    """A slice of 512 / 4 / 2 rows in micro-batches of 16384 // 4608: 22 of them, so that one pass in 23 is a wait."""
    done = run_dry(folder, {"RLJOB_DEVICES": "fake:14"}, roles=LAID_OUT)
    assert done.exit_code == 0, done.output
    assert PLACES in done.output
    assert (
        "models 2, parallelism tensor 2 x pipeline 2, sequence on, microBatchesOfSlice 22, rowsOfSlice 64,"
        in done.output
    )
    assert "actor: stages wait for 4.3% of a slice's time, 1 / (1 + 1 x 22 micro-batches)." in done.output
    assert "It is not measured for actor and actor_fwd." in done.output


def test_programs_get_the_places_of_ranks_too(folder: Path) -> None:
    plan = json.loads(run_dry(folder, {"RLJOB_DEVICES": "fake:14"}, "--output", "json", roles=LAID_OUT).output)
    processes = {one["name"]: one for one in plan["processes"]}
    assert processes["actor-0.7"]["place"] == {"data": 1, "tensor": 1, "pipeline": 1, "context": 0, "expert": 0}
    # Two models of two ranks, each of which computes for itself.
    assert [processes[f"actor_fwd-0.{rank}"]["place"]["data"] for rank in range(4)] == [0, 0, 1, 1]
    assert processes["actor_fwd-0.2"]["settings"]["models"] == 2
    assert processes["reference-0.0"]["place"] is processes["advantages-0.0"]["place"] is None
    assert plan["bubbles"] == [{"role": "actor", "microBatches": 22, "share": 1 / 23}]


def test_a_critic_has_a_row_of_its_own_on_its_own_devices(folder: Path) -> None:
    spec: dict[str, Any] = JOB["spec"]  # type: ignore[assignment] # a job's
    critic = {"gpus": 2, "optimizer": {"learningRate": 0.25}}
    roles = {**spec["roles"], "actor": {"gpus": 2}, "critic": critic}
    job = {**spec, "algorithm": {"advantage": "Gae"}, "training": {**spec["training"], "criticOnlySteps": 5}}
    (folder / "job.yaml").write_text(yaml.safe_dump({**JOB, "spec": {**job, "roles": roles}}))
    command = ["run", str(folder / "job.yaml"), "--dry-run", "--output", "json"]
    done = CliRunner().invoke(cli, command, env={"CUDA_VISIBLE_DEVICES": None, **EIGHT})
    assert done.exit_code == 0, done.output
    processes = {one["name"]: one for one in json.loads(done.stdout)["processes"]}
    actor, critic = processes["actor-0.1"], processes["critic-0.1"]
    assert (actor["devices"], critic["devices"]) == (["fake-1"], ["fake-3"])
    assert {name: critic["settings"][name] for name in ("rank", "world", "rowsOfSlice", "learningRate")} == {
        "rank": 1,
        "world": 2,
        "rowsOfSlice": actor["settings"]["rowsOfSlice"],
        "learningRate": 0.25,
    }
    assert (critic["settings"]["valueClip"], critic["settings"]["criticOnlySteps"]) == (0.2, 5)
    # A head of one row beside the embedding, to which the policy's is tied.
    assert critic["memory"]["weights"] == actor["memory"]["weights"] + 4 * 2560 // 2


def test_nine_devices_are_refused(folder: Path) -> None:
    done = run_dry(folder, EIGHT, roles={"rollout": {"gpus": 3, "engine": {"kind": "Torch"}}})
    assert done.exit_code == 64
    assert done.output.partition("job.yaml:15: ")[2] == (
        "spec.roles: 9 devices are wanted (actor 4 + rollout 3 + actorFwd 1 + reference 1), but this machine has 8 by"
        " RLJOB_DEVICES=fake:8. Lower replicas or gpus, or let roles use the actor's devices with shareDevicesWith:"
        " actor.\n"
    )


def test_programs_get_the_same_as_json(folder: Path) -> None:
    plan = json.loads(run_dry(folder, EIGHT, "--output", "json").output)
    assert plan["kind"] == "plan"
    by_name = {process["name"]: process for process in plan["processes"]}
    assert by_name["actor-0.3"]["devices"] == ["fake-3"]
    assert by_name["actor-0.3"]["settings"]["world"] == 4
    assert by_name["actor-0.3"]["memory"]["optimizer"] == 2 * by_name["actor-0.3"]["memory"]["weights"]
    assert by_name["advantages-0.0"]["memory"] is None
    devices = {device["name"]: device for device in plan["devices"]}
    assert devices["fake-0"]["leftBytes"] == (80 << 30) - devices["fake-0"]["neededBytes"]
    assert devices["fake-4"]["kvTokens"] == devices["fake-4"]["leftBytes"] // 147_456


def test_what_does_not_fit_is_stated(folder: Path) -> None:
    sharing = {"gpus": 1, "shareDevicesWith": "actor"}
    torch = {**sharing, "engine": {"kind": "Torch"}}
    roles = {"actor": {"gpus": 1}, "rollout": torch, "actorFwd": sharing, "reference": sharing}
    done = run_dry(folder, {"RLJOB_DEVICES": "fake:1"}, roles=roles)
    assert done.exit_code == 0
    everyone = "actor-0.0, rollout-0.engine, actor_fwd-0.0, reference-0.0"
    assert f"fake-0  80.0 GiB  105.5 GiB  -25.5 GiB  0 tokens  {everyone}" in done.output
    assert "fake-0: 105.5 GiB are needed and it has 80.0 GiB. Give the actor more gpus" in done.output


def test_an_engine_of_two_devices_has_half_of_the_model_on_each(folder: Path) -> None:
    engine = {"kind": "SGLang", "tensorParallel": 2, "args": ["--mem-fraction-static", "0.8"]}
    done = run_dry(folder, EIGHT, roles={"rollout": {"gpus": 2, "engine": engine}})
    assert done.exit_code == 0, done.output
    assert "rollout-0.engine fake-4,fake-5 3.7 GiB - - - - 3.7 GiB" in " ".join(done.output.split())
    assert "fake-5 80.0 GiB 3.7 GiB 76.3 GiB 1111k tokens rollout-0.engine" in " ".join(done.output.split())
    assert (
        "engine SGLang, dtype bfloat16, headDtype float32, threads 1, tensorParallel 2, args --mem-fraction-static 0.8"
        in done.output
    )


def test_engines_of_more_devices_than_there_are_for_them_are_refused(folder: Path) -> None:
    engine = {"kind": "SGLang", "tensorParallel": 4}
    done = run_dry(folder, EIGHT, roles={"rollout": {"gpus": 2, "engine": engine}})
    assert done.exit_code == 64
    assert "spec.roles.rollout.engine.tensorParallel: 4 GPUs for each engine do not divide the gpus of a pod, 2." in (
        done.output
    )


def test_roles_that_do_not_state_where_share_the_devices_of_the_actor(folder: Path) -> None:
    roles = {"actor": {"gpus": 4}, "rollout": {"gpus": 4}, "reference": {}}
    spec: dict[str, Any] = JOB["spec"]  # type: ignore[assignment] # a job's
    (folder / "job.yaml").write_text(yaml.safe_dump({**JOB, "spec": {**spec, "roles": roles}}))
    command = ["run", str(folder / "job.yaml"), "--dry-run", "--output", "json"]
    done = CliRunner().invoke(cli, command, env={"CUDA_VISIBLE_DEVICES": None, **EIGHT})
    assert done.exit_code == 0, done.output
    processes = {one["name"]: one for one in json.loads(done.stdout)["processes"]}
    assert [processes[f"reference-0.{rank}"]["devices"] for rank in range(4)] == [[f"fake-{rank}"] for rank in range(4)]
    assert processes["rollout-0.engine.0"]["settings"]["engine"] == "SGLang"
    assert not any(name.startswith("actor_fwd") for name in processes), "one optimizer step per rollout"


def test_the_quickstart_is_shown_too() -> None:
    file = Path(__file__).parents[3] / "examples/quickstart.yaml"
    done = CliRunner().invoke(cli, ["run", str(file), "--dry-run"], env={"RLJOB_DEVICES": "fake:0"})
    assert done.exit_code == 0, done.output
    assert done.output.startswith("quickstart: 6 processes in 5 pods; 0 of 0 devices by RLJOB_DEVICES=fake:0\n")
    assert "3 of a prompt (the longest prompt) and 3 of a response" in done.output


def test_a_job_on_the_cpu_needs_no_device(folder: Path) -> None:
    nothing = {"gpus": 0}
    roles = {"actor": nothing, "rollout": nothing, "actorFwd": nothing, "reference": nothing}
    done = run_dry(folder, {"RLJOB_DEVICES": "fake:0"}, roles=roles)
    assert "0 of 0 devices by RLJOB_DEVICES=fake:0" in done.output
    assert "host" in done.output


@pytest.mark.parametrize(
    ("prompts", "changes", "max_positions", "expected"),
    [
        pytest.param(['"12="', '"345="'], {}, None, (4, 3), id="a token for each character"),
        pytest.param(['"é="'], {"spec.model.config.tokenizer": {"kind": "Byte"}}, None, (3, 3), id="or for each byte"),
        pytest.param(['"12345="'], {"spec.model.tokenizerPath": "t"}, None, (2, 3), id="or for every third"),
        pytest.param(
            ['[{"role": "user", "content": "12345"}]'],
            {"spec.model.tokenizerPath": "t"},
            None,
            (3, 3),
            id="of a conversation",
        ),
        pytest.param(
            ['[{"role": "user", "content": "12345"}]'],
            {"spec.model.config.tokenizer": {"kind": "Byte"}, "spec.data.systemPrompt": "brief"},
            None,
            (len("<brief><12345>"), 3),
            id="with system prompt and template, by the tokenizer",
        ),
        pytest.param(['"1234567="'], {}, 8, (5, 3), id="no row is longer than the model can see"),
        pytest.param(['"1234567="'], {"spec.rollout.maxPromptTokens": 4}, 20, (4, 3), id="nor with a longer prompt"),
        pytest.param(['"12="'], {"spec.rollout.maxPromptTokens": 4}, 20, (3, 3), id="than there is"),
    ],
)
def test_the_longest_row(
    tmp_path: Path, prompts: list[str], changes: dict[str, Any], max_positions: int | None, expected: tuple[int, int]
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(f'{{"prompt": {prompt}, "label": "1"}}\n' for prompt in prompts))
    (tmp_path / "t.jinja").write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    template = {"spec.data.chatTemplate": {"file": str(tmp_path / "t.jinja")}}
    given = {"spec.data.prompts": str(file), "spec.rollout.sampling.maxNewTokens": 3, **template, **changes}
    found = row_lengths(RLJobSpec.model_validate(changed(given)["spec"]), max_positions)
    assert (found.prompt, found.response) == expected
