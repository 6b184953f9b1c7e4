"""What fails minutes after a start and is refused, or warned of, before: each thing by its sentence and its line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from rljob_api.spec import RLJobSpec
from rljob_cli.checks.findings import Level
from rljob_cli.checks.rewards import Trial, field_of, findings_of
from rljob_cli.main import cli
from rljob_workers.rewards.trial import try_reward
from tests.unit.api.manifests import changed

LLAMA: dict[str, Any] = {"model_type": "llama", "max_position_embeddings": 2048, "vocab_size": 6}
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{% endfor %}"
ROWS = '{"prompt": "12=", "label": "21"}\n{"prompt": "34=", "label": "43"}\n'
REWARDS = """
import math

def score(answers):
    print("a word of the reward's")
    return [float(one.response == one.label) for one in answers]

def nothing(answers):
    return [0.0 for _ in answers]

def sometimes(answers):
    return [None if not one.response else float(one.response == one.label) for one in answers]

def broken(answers):
    return [1.0 / len(one.missing) for one in answers]

def text(answers):
    return "good"

def never(answers):
    return [None for _ in answers]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job's files: prompts, a reward, and a model of which only the describing files are there."""
    (tmp_path / "prompts.jsonl").write_text(ROWS)
    (tmp_path / "graders.py").write_text(REWARDS)
    write_model(tmp_path, {})
    return tmp_path


def write_model(folder: Path, fields: dict[str, Any], **tokenizer: Any) -> None:
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(LLAMA | fields))
    (model / "model.safetensors").write_text("")
    (model / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": []}))
    (model / "tokenizer_config.json").write_text(json.dumps(tokenizer))


def validated(folder: Path, changes: dict[str, Any], *options: str) -> Result:
    (folder / "job.yaml").write_text(yaml.safe_dump(changed(changes), sort_keys=False))
    return CliRunner().invoke(cli, ["validate", str(folder / "job.yaml"), *options], env={"RLJOB_DEVICES": None})


def reported(folder: Path, changes: dict[str, Any], kind: str = "problems", *options: str) -> list[str]:
    """The sentences of one kind, with paths of the folder left out."""
    found = json.loads(validated(folder, changes, "--output", "json", *options).stdout)[kind]
    return [text.replace(f"{folder}/", "") for text in found]


SIZES = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 96}
FOLDER = {"spec.model": {"path": "model"}}
SERVED = {**FOLDER, "spec.roles.rollout": {"engine": {"kind": "SGLang"}}}

PROBLEMS = [
    pytest.param(
        {"model_type": "qwen2"},
        FOLDER,
        "spec.roles.rollout.engine.kind: Torch does not compute this model: its config.json has model_type 'qwen2', but"
        " it knows llama and qwen3. Set engine.kind: SGLang, or give another model.",
        id="a family that the torch engine lacks",
    ),
    pytest.param(
        {"rope_scaling": {"rope_type": "proportional", "factor": 2.0}},
        FOLDER,
        "spec.roles.rollout.engine.kind: Torch does not compute this model: its config.json has rope_type"
        " 'proportional', but it knows default, linear, llama3, yarn. Set engine.kind: SGLang, or give"
        " another model.",
        id="a rotary embedding that it lacks",
    ),
    pytest.param(
        {"model_type": "qwen2"},
        {**SERVED, "spec.roles.actor": {"backend": "Flat"}},
        "spec.roles.actor.backend: Flat does not compute this model: its config.json has model_type 'qwen2', but it"
        " knows llama and qwen3. Set roles.actor.backend to Fsdp, or give another model.",
        id="a family that the flat trainer lacks",
    ),
    pytest.param(
        {"model_type": "qwen2"},
        {**SERVED, "spec.algorithm.advantage": "Gae", "spec.roles.critic": {"backend": "Flat"}},
        "spec.roles.critic.backend: Flat does not compute this model: its config.json has model_type 'qwen2', but it"
        " knows llama and qwen3. Set roles.critic.backend to Fsdp, or give another model.",
        id="a family that the critic lacks",
    ),
    pytest.param(
        {"model_type": "mixtral", **SIZES},
        {**SERVED, "spec.roles.actor": {"backend": "Megatron"}, "spec.roles.reference": {"backend": "Fsdp"}},
        "spec.roles.actor.backend: Megatron does not compute a model whose config.json has model_type 'mixtral', but"
        " those of qwen2, qwen3, llama, qwen3_moe. Set backend to Fsdp.",
        id="a family that Megatron lacks",
    ),
    pytest.param(
        SIZES,
        {**SERVED, "spec.roles.actor": {"backend": "Megatron"}, "spec.training.experts": {"auxLossCoefficient": 0.1}},
        "spec.training.experts: needs a model with experts, and that of its config.json (llama) has none. Leave experts"
        " out.",
        id="no experts to balance",
    ),
    pytest.param(
        SIZES,
        {**SERVED, "spec.roles.actor": {"backend": "Megatron"}, "spec.training.recomputeModules": ["Moe"]},
        "spec.training.recomputeModules: has Moe, and the layers of its config.json have no experts. Give Mlp in its"
        " place.",
        id="no experts to compute again",
    ),
    pytest.param(
        SIZES,
        {
            **SERVED,
            "spec.roles.actor": {"backend": "Megatron"},
            "spec.stopWhen": {"metric": "experts/load_max", "above": 2},
        },
        "spec.stopWhen.metric: experts/load_max is of a model with experts, and that of its config.json has none. Give"
        " another metric.",
        id="no experts to stop by",
    ),
    pytest.param(
        SIZES,
        {**FOLDER, "spec.roles.actorFwd": {"backend": "Megatron", "ranksPerPod": 4, "parallelism": {"tensor": 4}}},
        "spec.roles.actorFwd.parallelism.tensor: 4 does not divide num_key_value_heads 2 of its config.json. Give a"
        " divisor of 2.",
        id="more tensor ranks than keys",
    ),
    pytest.param(
        {},
        {**FOLDER, "spec.rollout.sampling.maxNewTokens": 2048},
        "spec.rollout.sampling.maxNewTokens: 2048 leaves no room for a prompt in the 2048 positions of the model in"
        " model. Give less than 2048, or another model.",
        id="answers beyond the model's positions",
    ),
    pytest.param(
        {"vocab_size": 1},
        FOLDER,
        "spec.model.path: the tokenizer in model has 2 tokens, but the model only 1 (vocab_size in its config.json)."
        " Give the model's own tokenizer, or weights that were made for this one.",
        id="a tokenizer with more tokens than the model",
    ),
]


@pytest.mark.parametrize(("fields", "changes", "sentence"), PROBLEMS)
def test_a_model_that_would_fail_is_refused(
    folder: Path, fields: dict[str, Any], changes: dict[str, Any], sentence: str
) -> None:
    write_model(folder, fields)
    (problem,) = reported(folder, changes)
    line, _, text = problem.removeprefix("job.yaml:").partition(": ")
    assert text == sentence
    assert int(line) > 1


ACCEPTED = [
    pytest.param({"layer_scale": float("inf")}, FOLDER, id="a number that transformers writes and JSON lacks"),
    pytest.param(
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {**SERVED, "spec.rollout.sampling.maxNewTokens": 4000},
        id="positions that SGLang stretches by a factor",
    ),
    pytest.param(
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
        {**SERVED, "spec.rollout.sampling.maxNewTokens": 4000},
        id="or may stretch, by the version of transformers beside it",
    ),
    pytest.param(
        {},
        {
            **FOLDER,
            "spec.roles.rollout": {"engine": {"kind": "SGLang", "args": ["--context-length", "9000"]}},
            "spec.rollout.sampling.maxNewTokens": 4000,
        },
        id="a length that a flag gives",
    ),
]


@pytest.mark.parametrize(("fields", "changes"), ACCEPTED)
def test_a_model_that_would_work_is_not_refused(folder: Path, fields: dict[str, Any], changes: dict[str, Any]) -> None:
    write_model(folder, fields)
    assert reported(folder, changes) == []


STRETCHED = {"spec.rollout.sampling.maxNewTokens": 4000}


@pytest.mark.parametrize(
    ("rope", "changes"),
    [
        pytest.param({"rope_type": "linear", "factor": 2.0}, FOLDER, id="the torch engine stretches none"),
        pytest.param({"rope_type": "linear", "factor": 1.5}, SERVED, id="beyond the factor"),
        pytest.param(
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048},
            SERVED,
            id="the whole length",
        ),
        pytest.param({"rope_type": "llama3", "factor": 8.0}, SERVED, id="the whole length, of llama3"),
    ],
)
def test_answers_beyond_what_the_engine_takes_are_refused(
    folder: Path, rope: dict[str, Any], changes: dict[str, Any]
) -> None:
    write_model(folder, {"rope_scaling": rope})
    assert any(".maxNewTokens: 4000 leaves no room" in text for text in reported(folder, {**changes, **STRETCHED}))


def test_tokens_that_were_added_count_too(folder: Path) -> None:
    write_model(folder, {"vocab_size": 3}, added_tokens_decoder={"2": {"content": "<a>"}, "3": {"content": "<b>"}})
    (problem,) = reported(folder, FOLDER)
    assert "the tokenizer in model has 4 tokens, but the model only 3" in problem


FILES = [
    pytest.param(b"PAR1\x15\x04", "cannot be read (Parquet ", id="Parquet that is not whole"),
    pytest.param(b"ARROW1\0\0", "is a single Arrow file. Give the folder", id="Arrow"),
    pytest.param(b"\x1f\x8b\x08", "is compressed with gzip. Give it unpacked: gunzip --keep ", id="gzip"),
    pytest.param(b"[\n{}\n]\n", "is JSON over several lines, not JSONL. Give a JSON object per line: jq", id="a list"),
]


@pytest.mark.parametrize(("content", "message"), FILES)
def test_a_file_that_is_no_jsonl_is_known_by_its_beginning(folder: Path, content: bytes, message: str) -> None:
    (folder / "prompts.jsonl").write_bytes(content)
    assert message in reported(folder, {})[0]


def custom(name: str, module: str = "graders") -> dict[str, Any]:
    return {"spec.rollout.reward": {"custom": {"function": f"{module}:{name}", "path": "."}}}


def test_a_label_that_no_row_has_is_refused_once_where_it_is_meant(folder: Path) -> None:
    (problem,) = reported(folder, {"spec.data.labelKey": "answer"})
    assert problem.endswith(
        "spec.data.labelKey: no row of prompts.jsonl has 'answer'; they have prompt, label. Give one of these, or an"
        " empty text for a reward without labels."
    )
    assert len(reported(folder, {**custom("score"), "spec.data.labelKey": "answer"}, "problems", "--static")) == 1
    (folder / "prompts.jsonl").write_text('{"prompt": "12="}\n{"prompt": "34="}\n')
    assert reported(folder, custom("nothing"), "problems", "--static") == [], (
        "a default of ours that a reward need not read"
    )


TRIALS = [
    pytest.param("no_such_library", Level.PROBLEM, "needs no_such_library, which is not installed.", id="an import"),
    pytest.param("broken", Level.PROBLEM, "So it was with all 8 answers that were tried: see", id="every call"),
    pytest.param("text", Level.PROBLEM, "returned 'good' for the 4 answers", id="what is no score"),
    pytest.param("never", Level.WARNING, "So it was with all 8 answers that were tried", id="no score for any"),
    pytest.param("sometimes", Level.WARNING, "So it was with 2 of 8 answers that were tried: see", id="some answers"),
    pytest.param(
        "nothing", Level.WARNING, "gives 0 to all 8 answers that were tried, right and", id="one score for all"
    ),
]


@pytest.mark.parametrize(("name", "level", "message"), TRIALS)
def test_a_reward_that_fails_on_the_first_rows_is_known(folder: Path, name: str, level: Level, message: str) -> None:
    """Here in this process; that there is one of its own `rljob reward` shows below."""
    module = f"graders_{name}"  # of a name that this process has imported there can be no other
    (folder / f"{module}.py").write_text(REWARDS if name in REWARDS else f"import {name}\n")
    changes = {**custom(name, module), "spec.data.prompts": str(folder / "prompts.jsonl")}
    spec = RLJobSpec.model_validate(changed({**changes, "spec.rollout.reward.custom.path": str(folder)})["spec"])
    answer = try_reward(spec, 2)
    problem = None if answer["problem"] is None else f"spec.{answer['problem']}"
    (found,) = findings_of(Trial(problem, tuple(answer["rows"])), field_of(spec), name)
    assert found.level is level
    assert found.text.startswith("spec.rollout.reward.custom.function: ")
    assert message in found.text


def test_static_runs_no_code(folder: Path) -> None:
    assert validated(folder, custom("broken"), "--static").exit_code == 0


def test_the_command_shows_what_answers_are_worth(folder: Path) -> None:
    """The reward starts a helper that holds the outputs of its process: the command waits for neither, and ends it."""
    helper = "subprocess.Popen(['sleep', '600'], start_new_session=True)"
    begun = f"import subprocess\nhelper = {helper}\nprint(f'{{helper.pid}} helps')\n"
    (folder / "graders.py").write_text(f"{REWARDS}\n{begun}")
    assert validated(folder, custom("score")).exit_code == 0
    done = CliRunner().invoke(cli, ["reward", str(folder / "job.yaml"), "--rows", "2"])
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[:3] == [
        ["row", "prompt", "answered", "by", "answer", "reward"],
        ["1", "12=", "label", "21", "1"],
        ["empty", "0"],
    ]
    assert "a word of the reward's" in done.stderr
    (helping,) = re.findall(r"(\d+) helps", done.stderr)
    assert not Path(f"/proc/{helping}").exists()
    (folder / "graders.py").write_text(REWARDS + "\nscore = broken\n")
    done = CliRunner().invoke(cli, ["reward", str(folder / "job.yaml"), "--output", "json"])
    assert done.exit_code == 64
    message = json.loads(done.stdout)
    assert "graders.py, line 15)" in message["problems"][0]
    assert message["rows"][0]["answers"][0]["error"] is not None


WARNINGS = [
    pytest.param(ROWS + ROWS, {}, "2 of 4 prompts are there more than once (line 3 has that of line 1)", id="twice"),
    pytest.param(
        ROWS,
        {"spec.rollout.maxPromptTokens": 2},
        "2 of 2 prompts have more tokens than 2 (rollout.maxPromptTokens; the longest, line 2, has 3): they are passed"
        " over, and counted as prompts_passed_over in metrics.jsonl.",
        id="too long",
    ),
    pytest.param(
        '{"prompt": [{"role": "user", "content": "%s"}], "label": 1}' % ("1" * 90),
        {**SERVED, "spec.rollout.maxPromptTokens": 20},
        "1 of 1 prompts have more tokens than 20 (rollout.maxPromptTokens, with a token for 3 characters, without what"
        " the template adds; the longest, line 1, has 32)",
        id="a conversation that is too long",
    ),
    pytest.param(
        ROWS, SERVED, "has a chat template, but 2 of 2 prompts are texts", id="a template that is not applied"
    ),
]


@pytest.mark.parametrize(("rows", "changes", "message"), WARNINGS)
def test_what_a_person_would_want_to_know_is_a_warning(
    folder: Path, rows: str, changes: dict[str, Any], message: str
) -> None:
    (folder / "prompts.jsonl").write_text(rows)
    write_model(folder, {}, chat_template=TEMPLATE)
    found = [text for text in reported(folder, changes, "warnings") if ".engine.kind: " not in text]
    assert len(found) == 1
    assert message in found[0]


MISTRAL = {"model_type": "mistral", "sliding_window": 64}
QWEN2 = {"model_type": "qwen2", "sliding_window": 64}


@pytest.mark.parametrize(
    ("fields", "changes", "is_reported"),
    [
        pytest.param(MISTRAL, {"spec.rollout.sampling.maxNewTokens": 100}, True, id="answers"),
        pytest.param(MISTRAL, {"spec.rollout.maxPromptTokens": 60}, True, id="with their prompts"),
        pytest.param(MISTRAL, {"spec.rollout.maxPromptTokens": 40}, False, id="what fits the window"),
        pytest.param({**QWEN2, "use_sliding_window": False}, {"spec.rollout.maxPromptTokens": 60}, False, id="off"),
        pytest.param({**QWEN2, "use_sliding_window": True}, {"spec.rollout.maxPromptTokens": 60}, True, id="on"),
        pytest.param({**MISTRAL, "model_type": "gemma2"}, {"spec.rollout.maxPromptTokens": 60}, False, id="it has it"),
    ],
)
def test_a_sliding_window_that_sglang_does_not_have_is_a_warning_where_it_would_be_felt(
    folder: Path, fields: dict[str, Any], changes: dict[str, Any], is_reported: bool
) -> None:
    write_model(folder, fields)
    short = {**SERVED, "spec.rollout.sampling.maxNewTokens": 8}
    found = [text for text in reported(folder, {**short, **changes}, "warnings") if "sliding window" in text]
    assert bool(found) == is_reported
    if found:
        assert "the model in model has a sliding window of 64 tokens, which SGLang does not have for " in found[0]


def test_a_template_that_is_stated_to_stay_out_is_no_warning(folder: Path) -> None:
    write_model(folder, {}, chat_template=TEMPLATE)
    assert reported(folder, {**FOLDER, "spec.data.applyChatTemplate": False}, "warnings") == []


def test_an_interpreter_is_asked_whether_it_has_the_server(folder: Path) -> None:
    python = folder / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    engine = {"kind": "SGLang", "python": str(python)}
    roles = {"spec.roles": {"actor": {"gpus": 1}, "rollout": {"gpus": 1, "engine": engine}, "reference": {}}}
    (problem,) = reported(folder, roles)
    assert problem.endswith("has no SGLang. Install it there, or give the interpreter of an environment that has it.")


def test_all_problems_come_in_one_pass_each_with_its_line(folder: Path) -> None:
    (folder / "job.yaml").write_text(
        "metadata: {name: demo}\n"
        "spec:\n"
        "  model:\n"
        "    path: nowhere\n"
        "  data:\n"
        "    prompts: absent.jsonl\n"
        "  rollout:\n"
        "    numRollouts: 0\n"
        "    batchSize: 8\n"
        "    samplesPerPrompt: 4\n"
        "  training:\n"
        "    globalBatchSize: 7\n"
        "    microBatchSize: 4\n"
        "  restartPolicy:\n"
        "    failureRules:\n"
        "      - name: one\n"
        "        action: Count\n"
        "        exitCodes: [1]\n"
        "      - name: two\n"
        "        action: Never\n"
        "        exitCodes: [2]\n"
    )
    done = CliRunner().invoke(cli, ["validate", str(folder / "job.yaml")])
    assert done.exit_code == 64
    places = [line.removeprefix(f"{folder}/job.yaml:").split(": ")[:2] for line in done.stderr.splitlines()]
    assert places == [
        ["8", "spec.rollout.numRollouts"],
        ["20", "spec.restartPolicy.failureRules[1].action"],
        ["12", "spec.training.globalBatchSize"],
        ["4", "spec.model.path"],
        ["6", "spec.data.prompts"],
    ]


def test_nothing_is_stated_of_what_depends_on_a_refused_field(folder: Path) -> None:
    """With a batch size that is none, and a key that is none, no row lacks the default's key."""
    (folder / "prompts.jsonl").write_text('{"question": "1=", "label": 1}\n')
    problems = reported(folder, {"spec.rollout.batchSize": "many", "spec.data.promptKey": 5})
    assert [problem.split(": ")[1] for problem in problems] == ["spec.data.promptKey", "spec.rollout.batchSize"]


def test_for_a_cluster_what_is_not_here_is_named_and_its_rules_hold(folder: Path) -> None:
    gpus = {"actor": {"gpus": 1}, "rollout": {"gpus": 1}, "reference": {}}
    changes = {"spec.model": {"path": "/models/a"}, "spec.data.prompts": "/data/b.jsonl", "spec.roles": gpus}
    found = json.loads(validated(folder, changes, "--cluster", "--output", "json").stdout)
    (problem,) = found["problems"]
    assert ": spec.roles.reference: has no gpus, but the actor has gpus: " in problem
    assert [text.split(": ")[1] for text in found["notChecked"]] == ["spec.model.path", "spec.data.prompts"]


def test_devices_that_no_role_asks_for_are_named(folder: Path) -> None:
    (folder / "job.yaml").write_text(yaml.safe_dump(changed({})))
    done = CliRunner().invoke(cli, ["validate", str(folder / "job.yaml")], env={"RLJOB_DEVICES": "fake:8"})
    assert done.exit_code == 0
    assert "no role has gpus, so that everything is computed on the CPU beside 8 devices of this machine" in done.stderr
