"""A folder that no critic can begin with is refused before a start, in a sentence with field, value and cure."""

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec import RLJobSpec
from rljob_cli.checks.findings import Level
from rljob_cli.checks.reward_models import reward_model_findings
from tests.unit.api.manifests import changed

REWARD: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForSequenceClassification"],
    "id2label": {"0": "LABEL_0"},
    "vocab_size": 13,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
HEAD = {"score.weight": [1, 8]}
CURE = (
    "Give the folder of a reward model, or leave modelPath out: then the critic begins as the policy with a new head."
)


def write(folder: Path, described: dict[str, Any], shapes: dict[str, list[int]]) -> None:
    """A folder with the head of a safetensors file, and no weight."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(described))
    head = json.dumps({name: {"dtype": "F32", "shape": shape} for name, shape in shapes.items()}).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)


def spec(path: Path, changes: dict[str, Any] | None = None) -> RLJobSpec:
    """A job of a policy with 13 tokens whose critic begins with that folder."""
    job = {"spec.algorithm.advantage": "Gae", "spec.model.config.vocabSize": 13}
    return RLJobSpec.model_validate(
        changed({**job, "spec.roles.critic": {"modelPath": str(path)}, **(changes or {})})["spec"]
    )


def sentences(path: Path, changes: dict[str, Any] | None = None) -> list[str]:
    found = list(reward_model_findings(spec(path, changes), is_elsewhere=False))
    assert all(finding.level is Level.PROBLEM for finding in found)
    return [finding.text.replace(str(path), "reward") for finding in found]


def test_a_reward_model_of_the_policys_tokens_is_taken(tmp_path: Path) -> None:
    write(tmp_path / "reward", REWARD, HEAD)
    assert sentences(tmp_path / "reward") == []
    by_number = {key: value for key, value in REWARD.items() if key != "id2label"} | {"num_labels": 1}
    write(tmp_path / "other", by_number, HEAD)
    assert sentences(tmp_path / "other") == []


@pytest.mark.parametrize(
    ("fields", "shapes", "sentence"),
    [
        pytest.param(
            {"architectures": ["LlamaForCausalLM"]},
            HEAD,
            f"reward/config.json is of LlamaForCausalLM, which has no head of values. {CURE}",
            id="a policy",
        ),
        pytest.param(
            {"architectures": None},
            HEAD,
            f"reward/config.json is of no architecture, which has no head of values. {CURE}",
            id="a model without a name",
        ),
        pytest.param(
            {"id2label": {"0": "bad", "1": "good"}},
            HEAD,
            "reward/config.json is of a model with 2 labels, but a token has one value. Give a reward model of one"
            " label.",
            id="two labels",
        ),
        pytest.param(
            {"id2label": None},
            HEAD,
            "reward/config.json is of a model with 2 labels, but a token has one value. Give a reward model of one"
            " label.",
            id="no word of labels, which are two to transformers",
        ),
        pytest.param(
            {"vocab_size": 15},
            HEAD,
            "reward has a vocabulary of 15 tokens, and the policy one of 13, but both read the policy's tokens. Give a"
            " reward model with the policy's tokenizer.",
            id="another vocabulary",
        ),
        pytest.param(
            {"model_type": "qwen2", "architectures": ["Qwen2ForSequenceClassification"]},
            HEAD,
            "Flat does not compute the model in reward: its config.json has model_type 'qwen2', but it knows llama and"
            " qwen3. Set roles.critic.backend to Fsdp, or give another model.",
            id="a family that the flat trainer lacks",
        ),
        pytest.param(
            {},
            {"v_head.summary.weight": [1, 8]},
            f"reward has no tensor score.weight, the head of a reward model. {CURE}",
            id="a head of another name",
        ),
    ],
)
def test_a_folder_that_would_fail_is_refused(
    tmp_path: Path, fields: dict[str, Any], shapes: dict[str, list[int]], sentence: str
) -> None:
    write(tmp_path / "reward", REWARD | fields, shapes)
    assert sentences(tmp_path / "reward") == [f"spec.roles.critic.modelPath: {sentence}"]


def test_a_reward_model_that_cannot_be_laid_out_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "reward", REWARD, HEAD)
    laid_out = {"backend": "Megatron", "ranksPerPod": 3, "parallelism": {"tensor": 3}}
    critic = {"spec.roles.critic": {**laid_out, "modelPath": str(tmp_path / "reward")}}
    assert sentences(tmp_path / "reward", critic) == [
        "spec.roles.critic.parallelism.tensor: 3 does not divide num_key_value_heads 2 of its config.json. Give a"
        " divisor of 2."
    ]


def test_another_family_is_taken_where_the_critic_has_a_backend_that_computes_it(tmp_path: Path) -> None:
    other = {"model_type": "qwen2", "architectures": ["Qwen2ForSequenceClassification"]}
    write(tmp_path / "reward", REWARD | other, HEAD)
    critic = {"modelPath": str(tmp_path / "reward"), "backend": "Fsdp"}
    assert sentences(tmp_path / "reward", {"spec.roles.critic": critic}) == []


def test_a_policy_from_a_folder_is_compared_by_its_config(tmp_path: Path) -> None:
    write(tmp_path / "reward", REWARD, HEAD)
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text(json.dumps({"vocab_size": 14}))
    (problem,) = sentences(tmp_path / "reward", {"spec.model": {"path": str(tmp_path / "policy")}})
    assert "a vocabulary of 13 tokens, and the policy one of 14" in problem


def test_files_that_are_not_whole_are_named(tmp_path: Path) -> None:
    (tmp_path / "reward").mkdir()
    assert sentences(tmp_path / "reward") == [
        f"spec.roles.critic.modelPath: reward/config.json is no whole JSON object. {CURE}",
        "spec.roles.critic.modelPath: reward has no safetensors weights. Give the folder of a checkpoint.",
    ]


def test_a_folder_that_is_not_here_is_refused_here_and_named_for_a_cluster(tmp_path: Path) -> None:
    job = spec(tmp_path / "reward")
    (here,) = reward_model_findings(job, is_elsewhere=False)
    assert (here.level, here.text) == (
        Level.PROBLEM,
        f"spec.roles.critic.modelPath: {tmp_path / 'reward'} is not a folder. {CURE}",
    )
    (there,) = reward_model_findings(job, is_elsewhere=True)
    assert there.level is Level.UNCHECKED
    assert list(reward_model_findings(RLJobSpec.model_validate(changed({})["spec"]), is_elsewhere=False)) == []
