"""A sharded critic is a critic: the same steps as of one rank, whatever the backend, world, family, or who saved it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_workers.models.blob import WEIGHTS_FILE, read_blob, write_blob
from rljob_workers.models.building import build_config, initial_state, save_folder
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.value_head import VALUE_HEAD, critic_files
from tests.integration.trainers.critic_ranks import (
    ARCHITECTURES,
    PADDED,
    PROBE,
    SAVED_AT,
    STEPS,
    family_rows,
)
from tests.integration.trainers.worlds import run_world
from tests.near import FORWARD, assert_moved_alike, assert_near
from tests.unit.trainers.critics import assert_is_classifier, critic_rows, logits_of_prefixes
from tests.unit.trainers.fsdp.tiny import save_model
from tests.unit.trainers.rows import make_spec, select_rows

PROGRAM = "tests.integration.trainers.critic_ranks"
MOVED, RESULTS, PROBED = 5e-3, 1e-4, 1e-3
"""Of the way that a tensor moved, of losses, norms and metrics, and of values at the end: float32, as of policies."""
FAMILIES = ("qwen3_moe", "gemma2", "granite", "gpt_neox", "gpt_oss", "bloom")
"""With experts, with capped scores, and others of whose heads nothing is known here."""
WHOLE: Mapping[str, int] = {}
LAYOUTS: Mapping[str, Mapping[str, int]] = {
    "tensor and sequence": {"tensor": 2},
    "pipeline": {"pipeline": 2},
    "context": {"context": 2},
}
"""Of Megatron, each of two ranks that share a critic."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of reward models of both architectures, and of policies of other families with a head beside."""
    work = tmp_path_factory.mktemp("critics")
    chance = torch.Generator().manual_seed(4)
    head = {VALUE_HEAD: torch.randn(1, 32, generator=chance)}
    for name, tied in ARCHITECTURES.items():
        spec = make_spec(architecture=name, tied=tied)
        tokenizer = build_tokenizer(spec.model)
        backbone = {key: one for key, one in initial_state(spec.model, tokenizer).items() if key != "lm_head.weight"}
        (work / name).mkdir()
        write_blob(work / name / WEIGHTS_FILE, {**backbone, **head})
        for file, content in critic_files(spec.model, tokenizer).items():
            (work / name / file).write_bytes(content)
    spec = make_spec(architecture="Llama", tied=False)
    tokenizer = build_tokenizer(spec.model)
    config, policy = build_config(spec.model, tokenizer), initial_state(spec.model, tokenizer)
    save_folder(work / "policy", config, tokenizer, policy)
    for name in FAMILIES:
        write_blob(save_model(name, work / name) / "model-value-head.safetensors", head)
    return work


def run(
    folder: Path, backend: str, world: int, source: str = "", families: str = "", layout: Mapping[str, int] = WHOLE
) -> Path:
    """The folder of a world, which runs once for all tests."""
    work = folder / "-".join([backend, str(world), *map(str, chain(*layout.items())), source])
    if not work.exists():
        run_world(PROGRAM, world=world, folder=work, arguments=[backend, source, families, json.dumps(dict(layout))])
    return work


def weights_of(work: Path, name: str, world: int) -> dict[str, torch.Tensor]:
    return {key: one for rank in range(world) for key, one in read_blob(work / f"{name}-{rank}.safetensors").items()}


def results_of(work: Path, name: str, world: int) -> list[dict[str, float]]:
    seen = [json.loads((work / f"{name}-{rank}.json").read_text()) for rank in range(world)]
    assert all(one == seen[0] for one in seen), "all ranks say the same of a step"
    found: list[dict[str, float]] = seen[0]
    return found


@pytest.mark.long
def test_two_sharded_ranks_and_one_that_goes_on_train_what_a_flat_rank_trains(folder: Path) -> None:
    flat = run(folder, "Flat", 1)
    sharded = run(folder, "Fsdp", 2, families=",".join(FAMILIES))
    worlds = [
        (sharded, 2, 0),
        (run(folder, "Fsdp", 1, source=sharded.name), 1, SAVED_AT),
        (run(folder, "Flat", 2), 2, 0),
    ]
    for work, world, first in worlds:
        assert_trains_alike(folder, flat, work, world, first)


def assert_trains_alike(folder: Path, flat: Path, work: Path, world: int, first: int) -> None:
    """What a world has trained from step `first` on is what one flat rank has."""
    for name in ARCHITECTURES:
        start, expected = read_blob(folder / name / WEIGHTS_FILE), weights_of(flat, name, 1)
        results = results_of(flat, name, 1)
        assert len(results) == STEPS
        found = weights_of(work, name, world)
        assert found.keys() == expected.keys() == start.keys()
        for key, one in expected.items():
            assert_moved_alike(found[key], one, start[key], MOVED, f"{work.name}, {name}: {key}")
        for step, other in zip(results[first:], results_of(work, name, world), strict=True):
            assert other == pytest.approx(step, rel=RESULTS, abs=RESULTS)
            assert "critic/explained_variance" in step


@pytest.mark.parametrize(
    "layout",
    [
        "tensor and sequence",
        pytest.param("pipeline", marks=pytest.mark.long),
        pytest.param("context", marks=pytest.mark.long),
    ],
)
def test_ranks_that_share_a_critic_train_what_a_flat_rank_trains(layout: str, folder: Path) -> None:
    flat = run(folder, "Flat", 1)
    work = run(folder, "Megatron", 2, layout=LAYOUTS[layout])
    assert_trains_alike(folder, flat, work, 2, 0)
    for name in ARCHITECTURES:
        expected = read_blob(flat / f"{name}-values-0.safetensors")["values"]
        for rank in range(2):
            assert_near(read_blob(work / f"{name}-values-{rank}.safetensors")["values"], expected, PROBED, "values")


@pytest.mark.long
def test_critics_are_gone_on_with_across_layouts_and_backends(folder: Path) -> None:
    flat = run(folder, "Flat", 1)
    cut = run(folder, "Megatron", 2, layout=LAYOUTS["tensor and sequence"])
    staged = run(folder, "Megatron", 2, source=cut.name, layout=LAYOUTS["pipeline"])
    sharded = run(folder, "Fsdp", 2, source=cut.name)
    back = run(folder, "Megatron", 2, source=run(folder, "Flat", 2).name, layout=LAYOUTS["context"])
    for work in (staged, sharded, back):
        assert_trains_alike(folder, flat, work, 2, SAVED_AT)


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_what_sharded_ranks_save_is_a_classifier_of_transformers_with_their_values(name: str, folder: Path) -> None:
    work = run(folder, "Fsdp", 2, families=",".join(FAMILIES))
    spec = make_spec(architecture=name, tied=ARCHITECTURES[name])
    saved = folder / f"{name}-classifier"
    saved.mkdir()
    write_blob(saved / WEIGHTS_FILE, weights_of(work, name, 2))
    for file, content in critic_files(spec.model, build_tokenizer(spec.model)).items():
        (saved / file).write_bytes(content)
    assert_is_classifier(saved)
    rows, chosen = critic_rows(PROBE, longest=30), [0, 1, 5, 11]
    expected = logits_of_prefixes(saved, select_rows(rows, chosen))
    for rank in range(2):
        values = read_blob(work / f"{name}-values-{rank}.safetensors")["values"]
        parts = torch.split(values, rows.response_lengths.tolist())
        assert_near(torch.cat([parts[row] for row in chosen]), expected, FORWARD, "values")


@pytest.mark.parametrize("made_of", ["config", "folder"])
@pytest.mark.parametrize("backend", ["Fsdp", "Flat"])
def test_version_0_of_two_ranks_is_the_policys_backbone_and_a_head_of_zeros(
    backend: str, made_of: str, folder: Path
) -> None:
    work = run(folder, backend, 2, families=",".join(FAMILIES) if backend == "Fsdp" else "")
    found, policy = weights_of(work, f"version-0-{made_of}", 2), read_blob(folder / "policy" / WEIGHTS_FILE)
    assert found.keys() ^ policy.keys() == {VALUE_HEAD, "lm_head.weight"}
    assert all(torch.equal(found[key], one) for key, one in policy.items() if key in found)
    assert not found[VALUE_HEAD].any()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_head_is_put_on_the_last_hidden_states_of_any_family(name: str, folder: Path) -> None:
    work = run(folder, "Fsdp", 2, families=",".join(FAMILIES))
    expected = by_itself(name, folder / name)
    for rank in range(2):
        assert_near(read_blob(work / f"{name}-{rank}.safetensors")["values"], expected, FORWARD, f"values of {name}")


def by_itself(name: str, folder: Path) -> torch.Tensor:
    """By transformers' backbone alone, each row in a pass of its own."""
    from transformers import AutoModel

    attention = "eager" if name in (*PADDED, "gemma2") else "sdpa"
    model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
    head: Mapping[str, torch.Tensor] = read_blob(folder / "model-value-head.safetensors")
    tokens, responses = family_rows()
    parts = []
    with torch.no_grad():
        for row, response in zip(tokens.rows(), responses.tolist(), strict=True):
            states = model(input_ids=row[None].long(), use_cache=False).last_hidden_state[0]
            parts.append(states[-response - 1 : -1] @ head[VALUE_HEAD][0])
    return torch.cat(parts)
