"""Answers to a name of another trainer, to a misspelt one, and to one that asks for what there is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.generate.crd import spec_schema
from rljob_api.manifest import ManifestError, parsed
from rljob_api.other_names.absent import ABSENT, absent_sentence
from rljob_api.other_names.hints import field_hint, nearest, value_hint
from rljob_api.other_names.tables import TABLES
from rljob_api.overrides import Override, known_paths, overridden
from rljob_api.problems import _WITH_NAMES
from tests.unit.api.manifests import GOOD

LORA, QUANTISED, IMAGES, SERVERS, CLUSTERS, DEEPSPEED, TUNING, RESUMES, LOGGED, TRACKERS, UPLOADS = (
    each.sentence for each in ABSENT
)


def sentence_of(setting: str) -> str:
    with pytest.raises(ManifestError) as refused:
        parsed(overridden(GOOD, [Override.parse(setting)]))
    (sentence,) = refused.value.problems
    return sentence.removeprefix("--set: ").partition(": ")[2]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("rollout.num_generations=8", "num_generations of TRL is rollout.samplesPerPrompt here."),
        ("num_generations=8", "num_generations of TRL is rollout.samplesPerPrompt here."),
        ("actor_rollout_ref.rollout.n=8", "n of verl is rollout.samplesPerPrompt here."),
        ("data.train_batch_size=8", "train_batch_size of verl is rollout.batchSize here."),
        ("train_batch_size=8", "train_batch_size of verl is rollout.batchSize here."),
        ("rollout-max-response-len=8", "rollout-max-response-len of slime is rollout.sampling.maxNewTokens here."),
        ("beta=0.1", "beta of TRL is algorithm.kl.coefficient here."),
        ("use_vllm=true", "use_vllm of TRL is roles.rollout.engine.kind: SGLang here."),
        ("loss_type=x", "loss_type of TRL is algorithm.loss or algorithm.lossAggregation here."),
        (
            "epsilon=0.2",
            "Did you mean training.optimizer.epsilon? epsilon of TRL is algorithm.clip.low here.",
        ),
        (
            "gradient_accumulation_steps=8",
            "gradient_accumulation_steps of TRL is training.globalBatchSize here (gradient_accumulation_steps x"
            " per_device_train_batch_size x processes).",
        ),
        (
            "training.num_train_epochs=3",
            "num_train_epochs of TRL is rollout.numRollouts here (num_train_epochs x rows / batchSize).",
        ),
        (
            "trainer.total_epochs=3",
            "total_epochs of verl is rollout.numRollouts here (trainer.total_epochs x rows / batchSize).",
        ),
        (
            "ppo_mini_batch_size=8",
            "ppo_mini_batch_size of verl is training.globalBatchSize here (actor.ppo_mini_batch_size x a.rollout.n).",
        ),
        (
            "actor_rollout_ref.rollout.gpu_memory_utilization=0.5",
            "gpu_memory_utilization of verl is roles.rollout.engine.args here (rollout.gpu_memory_utilization as"
            " --mem-fraction-static).",
        ),
        ("warmup_ratio=0.1", "warmup_ratio of TRL is training.optimizer.warmupSteps here (warmup_ratio x steps)."),
        ("grad_clip=1", "grad_clip of verl is training.optimizer.maxGradNorm here."),
        ("use-tis=true", "use-tis of slime is algorithm.correction.kind: Tis here."),
        ("eval-prompt-data=x", "eval-prompt-data of slime is evaluation.sets[0].data.prompts here."),
        ("max_head_offpolicyness=1", "max_head_offpolicyness of AReaL is rollout.maxStaleness here."),
        (
            "algo.kl.init_coef=1",
            "Did you mean algorithm? init_coef of OpenRLHF is algorithm.kl.coefficient here.",
        ),
        ("resume_from_checkpoint=true", RESUMES),
        ("trainer.resume_mode=auto", RESUMES),
        ("logging_steps=1", LOGGED),
        ("trainer.project_name=x", TRACKERS),
        ("wandb_project=x", TRACKERS),
        ("push_to_hub=true", UPLOADS),
        ("data.images=x", IMAGES),
        ("data.image_key=x", IMAGES),
        ("scheduling.slurm=1", CLUSTERS),
        ("model.lora_rank=8", LORA),
        ("model.loraAlpha=8", LORA),
        ("peft_config.r=8", LORA),
        ("model.load_in_4bit=true", QUANTISED),
        ("model.quantization=awq", QUANTISED),
        ("training.deepspeed=zero3", DEEPSPEED),
        ("roles.rollout.engine.kind=vLLM", SERVERS),
        ("roles.rollout.engine.kind=sglang", "Did you mean SGLang?"),
        ("algorithm.advantage=grpo", "Did you mean Grpo?"),
        ("algorithm.advantage=reinforce_plus_plus", "Did you mean ReinforcePlusPlus?"),
        ("algorithm.loss=dr_grpo", "dr_grpo of TRL is algorithm.lossAggregation: Constant here."),
        ("algorithm.loss=grpo", "grpo of verl is algorithm.advantage: Grpo here."),
        ("algorithm.loss=token-mean", "token-mean of verl is algorithm.lossAggregation: TokenMean here."),
        ("model.dtype=fp8", QUANTISED),
        ("model.dtype=bfloat-16", "Did you mean bfloat16?"),
        (
            "algorithm.loss=other",
            "Known here: PpoClip, Gspo, Cispo, Sapo, Reinforce; or an import path of the form package.module:function.",
        ),
        ("rollout.dpo=1", TUNING),
    ],
)
def test_names_that_users_bring(setting: str, expected: str) -> None:
    sentence = sentence_of(setting)
    assert sentence.removeprefix("there is no such field. ").rpartition("is not a known value. ")[2] == expected


@pytest.mark.parametrize("name", ["frobnicate", "slurms", "zzz", "x", "tokens_per_second_wanted"])
def test_what_is_not_near_is_not_suggested(name: str) -> None:
    assert "Did you mean" not in sentence_of(f"rollout.{name}=1")


def alternatives(schema: dict[str, Any], path: str = "spec") -> Iterator[tuple[str, list[str]]]:
    """Every field of the spec that takes names of ours, beside import paths or not."""
    named = _WITH_NAMES.match(schema.get("pattern", ""))
    if named is not None or "enum" in schema:
        yield path, named[1].split("|") if named is not None else schema["enum"]
    for name, inner in schema.get("properties", {}).items():
        yield from alternatives(inner, f"{path}.{name}")
    if "items" in schema:
        yield from alternatives(schema["items"], f"{path}[0]")


NAMED = list(alternatives(spec_schema()))


def in_snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).strip("_")


def test_there_are_fields_that_take_names() -> None:
    assert len(NAMED) > 20


@pytest.mark.parametrize(("path", "values"), [pytest.param(*one, id=one[0]) for one in NAMED])
def test_a_value_in_another_spelling_is_known(path: str, values: list[str]) -> None:
    for value in values:
        for given_value in (value.lower(), value.upper(), in_snake_case(value), in_snake_case(value).replace("_", "-")):
            assert value_hint(given_value, values) == f"Did you mean {value}?", path


def test_every_name_of_the_tables_is_answered_with_ours() -> None:
    for name in (name for table in TABLES for name in table.names):
        hint = field_hint(name.name.split("."))
        assert hint is not None
        assert name.ours in hint, name


def test_no_field_of_ours_asks_for_what_there_is_not() -> None:
    names = {part for path in known_paths() for part in path.replace("[0]", "").split(".")}
    assert {name for name in names if absent_sentence(name) is not None} == set()


@given(st.text("abcdefgh", max_size=12), st.lists(st.text("abcdefgh", min_size=1, max_size=12), max_size=4))
def test_what_is_nearest_differs_in_a_quarter_of_its_letters_or_is_longer(name: str, known: list[str]) -> None:
    near = nearest(name, known)
    if name in known:
        assert near == name
    if near is not None and not near.startswith(name):
        assert abs(len(near) - len(name)) <= min(3, max(1, len(name) // 4))
    assert near is None or near in known
