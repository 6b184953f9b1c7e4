"""A folder that can teach no policy is refused before a start, in a sentence with field, value and cure."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from rljob_api.manifest import resolve_paths
from rljob_api.model_files.tokens import made_tokens
from rljob_api.spec import RLJob, RLJobSpec
from rljob_api.spec.model import TokenizerConfig
from rljob_cli.checks.findings import Level
from rljob_cli.checks.teachers import teacher_findings
from rljob_cli.main import cli
from tests.unit.api.manifests import changed

TEACHER: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 13,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
TOKENS = dict(made_tokens(TokenizerConfig(alphabet="0123456789=")))
"""The policy's: 11 characters, and two special tokens."""
CURE = "Give the folder of a causal language model, or leave modelPath out: then the reference is version 0."
OTHER = "Give a teacher with the policy's tokenizer."
DISTILLATION = {"spec.algorithm.advantage": "Distillation"}


def write(
    folder: Path, described: dict[str, Any], tokens: dict[int, str] | None = None, end: str | None = "<|eos|>"
) -> Path:
    """A folder with the head of a safetensors file, and no weight; without `tokens` it has no tokenizer."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(described))
    head = json.dumps({"model.norm.weight": {"dtype": "F32", "shape": [16]}}).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    if tokens is not None:
        added = [{"id": index, "content": token} for index, token in tokens.items() if token.startswith("<|")]
        plain = {token: index for index, token in tokens.items() if not token.startswith("<|")}
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": plain}, "added_tokens": added}))
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": end}}))
    return folder


def spec(path: Path | str, changes: dict[str, Any] | None = None) -> RLJobSpec:
    """A job of a policy with 13 tokens."""
    roles = {"spec.roles.reference": {"modelPath": str(path)}}
    return RLJobSpec.model_validate(changed({**DISTILLATION, **roles, **(changes or {})})["spec"])


def found(path: Path, changes: dict[str, Any] | None = None) -> list[tuple[Level, str]]:
    findings = teacher_findings(spec(path, changes), is_elsewhere=False)
    return [(finding.level, finding.text.replace(str(path), "teacher")) for finding in findings]


def test_a_teacher_that_cannot_be_laid_out_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "teacher", TEACHER, TOKENS)
    laid_out = {"backend": "Megatron", "modelPath": str(folder), "ranksPerPod": 4, "parallelism": {"pipeline": 4}}
    assert found(folder, {"spec.roles.reference": laid_out}) == [
        (
            Level.PROBLEM,
            "spec.roles.reference.parallelism.pipeline: 4 x virtualPipeline 1 does not divide num_hidden_layers 2 of"
            " its config.json. Give numbers whose product is a divisor of 2.",
        )
    ]
    fitting = {**laid_out, "parallelism": {"pipeline": 2, "tensor": 2}}
    assert found(folder, {"spec.roles.reference": fitting}) == []


def test_a_larger_model_of_the_policys_tokens_is_taken(tmp_path: Path) -> None:
    assert found(write(tmp_path / "teacher", TEACHER, TOKENS)) == []
    padded = write(tmp_path / "padded", {**TEACHER, "vocab_size": 128}, TOKENS)
    assert found(padded) == [], "rows beyond the tokenizer's tokens are never asked for"


@pytest.mark.parametrize(
    ("fields", "tokens", "sentence"),
    [
        pytest.param(
            {},
            {**TOKENS, 3: "x"},
            f"the tokenizer in teacher is not the policy's: the id 3 is 'x' there, but '3' to the policy. {OTHER}",
            id="another alphabet",
        ),
        pytest.param(
            {},
            {**TOKENS, 11: "<|pad|>", 12: "<|eos|>"},
            "the tokenizer in teacher is not the policy's: the id 11 is '<|pad|>' there, but '<|eos|>' to the policy."
            f" {OTHER}",
            id="special tokens that are exchanged",
        ),
        pytest.param(
            {"vocab_size": 14},
            {**TOKENS, 13: "<|tool|>"},
            "the tokenizer in teacher is not the policy's: the id 13 is '<|tool|>' there, but no token to the policy."
            f" {OTHER}",
            id="a token more",
        ),
        pytest.param(
            {"vocab_size": 12},
            TOKENS,
            "teacher has a vocabulary of 12 tokens, and the policy one of 13, but both read the policy's tokens."
            f" {OTHER}",
            id="too few rows",
        ),
        pytest.param(
            {"vocab_size": 14},
            None,
            "teacher has a vocabulary of 14 tokens, and the policy one of 13, but both read the policy's tokens."
            f" {OTHER}",
            id="more rows, and no tokenizer that would explain them",
        ),
        pytest.param(
            {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
            TOKENS,
            "Flat does not compute the model in teacher: its config.json has model_type 'qwen2', but it knows llama and"
            " qwen3. Set roles.reference.backend to Fsdp, or give another model.",
            id="a family that the flat trainer lacks",
        ),
        pytest.param(
            {"architectures": ["LlamaForSequenceClassification"]},
            TOKENS,
            f"teacher/config.json is of LlamaForSequenceClassification, which has no log-probs. {CURE}",
            id="a reward model",
        ),
        pytest.param(
            {"max_position_embeddings": 4},
            TOKENS,
            "teacher has 4 positions, which rollout.sampling.maxNewTokens 4 fills without a prompt. Give a teacher of"
            " longer texts, or fewer tokens.",
            id="a teacher of short texts",
        ),
    ],
)
def test_a_folder_that_would_fail_is_refused(
    tmp_path: Path, fields: dict[str, Any], tokens: dict[int, str] | None, sentence: str
) -> None:
    folder = write(tmp_path / "teacher", TEACHER | fields, tokens)
    problems = [text for level, text in found(folder) if level is Level.PROBLEM]
    assert problems == [f"spec.roles.reference.modelPath: {sentence}"]


def test_another_family_is_taken_where_the_backend_computes_it(tmp_path: Path) -> None:
    other = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    folder = write(tmp_path / "teacher", TEACHER | other, TOKENS)
    assert found(folder, {"spec.roles.actor": {"backend": "Fsdp"}}) == []


def test_a_policy_from_a_folder_is_compared_by_its_files(tmp_path: Path) -> None:
    policy = write(tmp_path / "policy", {**TEACHER, "vocab_size": 16}, {**TOKENS, 3: "x"})
    teacher = write(tmp_path / "teacher", TEACHER, TOKENS)
    (level, text) = found(teacher, {"spec.model": {"path": str(policy)}, "spec.roles.actor": {"backend": "Flat"}})[0]
    assert level is Level.PROBLEM
    assert "the id 3 is '3' there, but 'x' to the policy" in text


def test_what_no_file_states_is_named(tmp_path: Path) -> None:
    (one,) = found(write(tmp_path / "teacher", TEACHER))
    assert one == (
        Level.UNCHECKED,
        "spec.roles.reference.modelPath: without a tokenizer.json beside the teacher and beside the policy it was not"
        " looked whether they have one tokenizer.",
    )


def test_a_teacher_that_ends_its_texts_otherwise_is_warned_of(tmp_path: Path) -> None:
    ((level, text),) = found(write(tmp_path / "teacher", TEACHER, TOKENS, end="<|pad|>"))
    assert level is Level.WARNING
    assert "ends its texts with '<|pad|>', and the policy with '<|eos|>'" in text


def test_files_that_are_not_whole_are_named(tmp_path: Path) -> None:
    (tmp_path / "teacher").mkdir()
    problems = [text for level, text in found(tmp_path / "teacher") if level is Level.PROBLEM]
    assert problems == [
        f"spec.roles.reference.modelPath: teacher/config.json is no whole JSON object. {CURE}",
        "spec.roles.reference.modelPath: teacher has no safetensors weights. Give the folder of a checkpoint.",
    ]


def test_a_folder_that_is_not_here_is_refused_here_and_named_for_a_cluster(tmp_path: Path) -> None:
    job = spec(tmp_path / "teacher")
    (here,) = teacher_findings(job, is_elsewhere=False)
    assert (here.level, here.text) == (
        Level.PROBLEM,
        f"spec.roles.reference.modelPath: {tmp_path / 'teacher'} is not a folder. {CURE}",
    )
    (there,) = teacher_findings(job, is_elsewhere=True)
    assert there.level is Level.UNCHECKED
    assert list(teacher_findings(RLJobSpec.model_validate(changed({})["spec"]), is_elsewhere=False)) == []


def test_the_command_line_refuses_it_with_the_line_of_the_field(tmp_path: Path) -> None:
    write(tmp_path / "teacher", TEACHER, {**TOKENS, 3: "x"})
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "12=", "label": "21"}\n')
    job = changed({**DISTILLATION, "spec.roles.reference": {"modelPath": "teacher"}})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    for command in (["validate"], ["run", "--out", str(tmp_path / "out")]):
        done = CliRunner().invoke(cli, [command[0], str(tmp_path / "job.yaml"), *command[1:]])
        assert done.exit_code == 64, done.output
        assert (
            f"spec.roles.reference.modelPath: the tokenizer in {tmp_path / 'teacher'} is not the policy's"
            in done.output
        )
    assert not (tmp_path / "out").exists()


def test_the_folder_is_relative_to_the_manifest(tmp_path: Path) -> None:
    job = RLJob.model_validate(changed({**DISTILLATION, "spec.roles.reference": {"modelPath": "teacher"}}))
    reference = resolve_paths(job, tmp_path).spec.roles.reference
    assert reference is not None
    assert reference.model_path == str(tmp_path / "teacher")
