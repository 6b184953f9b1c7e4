"""A record as a Hugging Face folder: bit for bit, whole or not at all, tensor by tensor."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rljob_api.names import Role
from rljob_api.wire.checkpoint_report import ExportDtype
from rljob_workers.dcs.checkpoints import export
from rljob_workers.dcs.checkpoints.command import check_room, check_target
from rljob_workers.dcs.checkpoints.export import (
    Origin,
    RecordedWeights,
    write_folder,
)
from rljob_workers.dcs.errors import CheckpointDamaged
from rljob_workers.models.blob import INDEX_FILE, read_weights, rounds
from rljob_workers.models.slices import PARAMETER, StateShare, StateSlice
from rljob_workers.simulation.policy import NAMES
from tests.memory_meter import MemoryMeter
from tests.records import cut_up, made_files, made_weights, make_record

Weights = dict[str, torch.Tensor]


def exported(record: Path, to: Path, dtype: ExportDtype | None, role: Role = Role.ACTOR) -> tuple[Weights, set[Origin]]:
    """The tensors of the folder that is made, and what they were made of."""
    weights = RecordedWeights(record, role, dtype)
    write_folder(weights, weights.describing_files(), to, lambda _: None)
    return read_weights(to), set(weights.origins.values())


def bits(tensor: torch.Tensor) -> list[int]:
    """What is in memory, byte by byte."""
    return list(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def nearest_bfloat16(values: torch.Tensor) -> torch.Tensor:
    """Of finite float32: the upper 16 bits, rounded to the nearest, and of two that are as near to the even one."""
    found = values.contiguous().numpy().view(np.uint32).astype(np.uint64)
    rounded = ((found + 0x7FFF + ((found >> 16) & 1)) >> 16).astype(np.uint16)
    return torch.from_numpy(rounded.view(np.int16).copy()).view(torch.bfloat16).reshape(values.shape)


def assert_same(found: Weights, expected: Weights) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype is tensor.dtype
        assert bits(found[name]) == bits(tensor), name


def test_float32_is_what_the_ranks_had_bit_for_bit(tmp_path: Path) -> None:
    """Of three ranks, each with many slices of one name."""
    weights = made_weights()
    record = make_record(tmp_path, weights, cut_up(weights))
    assert any("@" in key for key in cut_up(weights)[0].tensors()), "the record would not have several slices of a name"
    found, origins = exported(record, tmp_path / "to", ExportDtype.FLOAT32)
    assert origins == {Origin.EXACT}
    assert_same(found, weights)


@pytest.mark.parametrize("dtype", [None, ExportDtype.BFLOAT16], ids=["as published", "the published type"])
def test_what_has_the_type_already_is_as_it_was_published(tmp_path: Path, dtype: ExportDtype | None) -> None:
    weights = made_weights()
    found, origins = exported(make_record(tmp_path, weights, cut_up(weights)), tmp_path / "to", dtype)
    assert origins == {Origin.PUBLISHED}
    assert_same(found, {name: nearest_bfloat16(tensor) for name, tensor in weights.items()})


def test_another_type_is_rounded_once_from_the_exact_weights(tmp_path: Path) -> None:
    weights = made_weights()
    found, origins = exported(make_record(tmp_path, weights, cut_up(weights)), tmp_path / "to", ExportDtype.FLOAT16)
    assert origins == {Origin.EXACT}
    once = {name: torch.from_numpy(tensor.numpy().astype(np.float16)) for name, tensor in weights.items()}
    assert_same(found, once)
    twice = {name: tensor.to(torch.bfloat16).to(torch.float16) for name, tensor in weights.items()}
    assert any(bits(twice[name]) != bits(once[name]) for name in once), "the test would not see a second rounding"


def test_published_weights_are_converted_where_there_are_no_others(tmp_path: Path) -> None:
    """A job in float32 saves no weights beside them; a record may have lost its state."""
    weights = made_weights()
    record = make_record(tmp_path, weights, [], dtype=torch.float32, described=made_files(torch.float32))
    found, origins = exported(record, tmp_path / "rounded", ExportDtype.BFLOAT16)
    assert origins == {Origin.CONVERTED}
    assert_same(found, {name: nearest_bfloat16(tensor) for name, tensor in weights.items()})
    same, origins = exported(record, tmp_path / "same", ExportDtype.FLOAT32)
    assert origins == {Origin.PUBLISHED}
    assert_same(same, weights)


def test_integers_stay_and_a_tensor_that_is_not_trained_is_converted(tmp_path: Path) -> None:
    """As of an expert's bias, which a router has and no optimizer."""
    weights = made_weights()
    others = {"counts": torch.arange(3), "scale": torch.tensor([0.5, 3.0])}
    record = make_record(tmp_path, {**weights, **others}, cut_up(weights))
    found, origins = exported(record, tmp_path / "to", ExportDtype.FLOAT32)
    assert origins == {Origin.EXACT, Origin.CONVERTED, Origin.PUBLISHED}
    assert_same(found, {**weights, **others})


def test_the_folder_is_one_that_transformers_loads(tmp_path: Path) -> None:
    """Its log-probs are those of a model of transformers with the weights that the record was made of."""
    weights = made_weights()
    record = make_record(tmp_path, weights, cut_up(weights))
    exported(record, tmp_path / "to", ExportDtype.FLOAT32)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "to", local_files_only=True)
    assert loaded.dtype is torch.float32
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "to", local_files_only=True)
    text = torch.tensor([tokenizer.encode("12=46")])
    plain: Any = AutoModelForCausalLM.from_config(loaded.config)  # type: ignore[no-untyped-call] # transformers'
    plain.load_state_dict(weights, strict=False)
    with torch.no_grad():
        expected = plain(text).logits.log_softmax(-1)
        assert torch.equal(loaded(text).logits.log_softmax(-1), expected)
        published = AutoModelForCausalLM.from_pretrained(record, local_files_only=True, dtype=torch.float32)
        assert not torch.equal(published(text).logits.log_softmax(-1), expected), "rounded weights would not be seen"


def test_what_only_the_job_can_use_stays_behind(tmp_path: Path) -> None:
    weights = made_weights()
    config = json.loads(made_files()["config.json"])
    described = {
        **made_files(),
        "config.json": json.dumps({**config, "torch_dtype": "bfloat16"}).encode(),
        "generation_config.json": b'{"temperature": 0.7}',
        "tickets.json": b"{}",
        "reference.json": b"{}",
    }
    record = make_record(tmp_path, weights, cut_up(weights), described=described)
    exported(record, tmp_path / "to", ExportDtype.FLOAT32)
    names = {path.name for path in (tmp_path / "to").iterdir()}
    assert names == {*made_files(), "generation_config.json", "model.safetensors"}
    assert json.loads((tmp_path / "to/config.json").read_bytes()) == {**config, "dtype": "float32"}
    for name in names - {"config.json", "model.safetensors"}:
        assert (tmp_path / "to" / name).read_bytes() == described[name]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        pytest.param([3, 3, 4], [[0, 1, 2]], id="all fit"),
        pytest.param([3, 3, 5], [[0, 1], [2]], id="one is too much"),
        pytest.param([12, 3, 12, 3, 3], [[0], [1], [2], [3, 4]], id="tensors that are larger than a part"),
        pytest.param([], [], id="none"),
    ],
)
def test_parts_have_ten_bytes_at_most(sizes: list[int], expected: list[list[int]]) -> None:
    named = {str(index): size for index, size in enumerate(sizes)}
    assert rounds(named, 10) == [[str(index) for index in part] for part in expected]


def test_a_model_in_parts_has_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "PART_BYTES", 20_000)
    weights = made_weights()
    record = make_record(tmp_path, weights, cut_up(weights))
    assert_same(exported(record, tmp_path / "to", ExportDtype.FLOAT32)[0], weights)
    files = sorted(path.name for path in (tmp_path / "to").glob("model-*"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "to" / INDEX_FILE).read_bytes())
    assert index["metadata"]["total_size"] == sum(4 * tensor.numel() for tensor in weights.values())
    assert index["weight_map"].keys() == weights.keys()
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "to", local_files_only=True).dtype is torch.float32


def test_a_value_that_the_type_does_not_hold_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    weights = made_weights()
    weights["model.norm.weight"][3] = -70000.0
    record = make_record(tmp_path, weights, cut_up(weights))
    text = r"--dtype: model.norm.weight has the value -70000, which torch.float16 does not hold. Give float32, or bf"
    with pytest.raises(ValueError, match=text):
        exported(record, tmp_path / "made/to", ExportDtype.FLOAT16)
    assert list((tmp_path / "made").iterdir()) == []


def test_an_end_amid_the_writing_leaves_nothing(tmp_path: Path) -> None:
    weights = made_weights()
    made = RecordedWeights(make_record(tmp_path / "record", weights, []), Role.ACTOR, None)

    def end(_: int) -> None:
        assert len(list((tmp_path / "made").iterdir())) == 1, "it is written beside"
        sys.exit(143)

    with pytest.raises(SystemExit):
        write_folder(made, {}, tmp_path / "made/to", end)
    assert list((tmp_path / "made").iterdir()) == []


def test_a_state_that_lacks_a_slice_is_refused(tmp_path: Path) -> None:
    """Not passed over for the rounded weights."""
    weights = made_weights()
    shares = cut_up(weights)
    shares[1] = StateShare(shares[1].slices[1:], shares[1].own, shares[1].values)
    record = make_record(tmp_path, weights, shares)
    with pytest.raises(
        CheckpointDamaged, match=r"does not belong to its published weights \(parameter of .* not there"
    ):
        RecordedWeights(record, Role.ACTOR, ExportDtype.FLOAT32)
    assert RecordedWeights(record, Role.ACTOR, None).files, "the published ones can be exported"


def test_a_state_of_weights_that_were_not_published_is_refused(tmp_path: Path) -> None:
    weights = made_weights()
    shares = cut_up(weights)
    del weights["model.norm.weight"]
    record = make_record(tmp_path, weights, shares)
    with pytest.raises(CheckpointDamaged, match=r"parameter of model\.norm\.weight is not of this model"):
        RecordedWeights(record, Role.ACTOR, ExportDtype.FLOAT32)


def test_a_record_without_a_critic_or_of_a_simulated_job_has_no_model(tmp_path: Path) -> None:
    weights = made_weights()
    record = make_record(tmp_path / "one", weights, [])
    with pytest.raises(ValueError, match=r"--role: .* has no critic, since its job had none\. Leave --role out"):
        RecordedWeights(record, Role.CRITIC, None)
    simulated = make_record(tmp_path / "two", dict.fromkeys(NAMES, torch.zeros(8)), [])
    with pytest.raises(ValueError, match="saved by a simulated trainer, which has no model"):
        RecordedWeights(simulated, Role.ACTOR, None)


def test_an_export_writes_over_nothing(tmp_path: Path) -> None:
    record, empty, full, file = (tmp_path / name for name in ("record", "empty", "full", "file"))
    for folder in (record, empty, full):
        folder.mkdir()
    (full / "mine").touch()
    file.touch()
    check_target(empty, record)
    check_target(tmp_path / "new/deeper", record)
    for to, text in (
        (full, f"--to: {full} is not empty. Give a folder that does not exist yet, or an empty one."),
        (file, f"--to: {file} is a file. Give"),
        (record / "to", f"--to: {record / 'to'} is in the record itself"),
    ):
        with pytest.raises(ValueError, match=text):
            check_target(to, record)


def test_an_empty_folder_becomes_the_export(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    weights = made_weights()
    found, _ = exported(make_record(tmp_path, weights, []), tmp_path / "to", None)
    assert found.keys() == weights.keys()
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()


def test_an_export_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    check_room(tmp_path / "to/deeper", 1)
    with pytest.raises(ValueError, match=r"would take 1000000000\.0 GB, and its file system has \d+\.\d GB left"):
        check_room(tmp_path / "to/deeper", 10**18)


MASKS = 12 << 20
"""For the comparison of a million elements at a time."""


def test_no_more_than_a_tensor_is_in_memory(tmp_path: Path) -> None:
    """Of 204 MiB of exact weights in twelve tensors: one as float32, and one as it is written."""
    weights = {f"layer.{index}": torch.randn(1024, 4352) for index in range(12)}
    record = make_record(tmp_path, weights, cut_by_thirds(weights))
    largest = max(4 * tensor.numel() for tensor in weights.values())
    del weights
    for dtype in (ExportDtype.FLOAT32, ExportDtype.FLOAT16):
        made = RecordedWeights(record, Role.ACTOR, dtype)
        with MemoryMeter() as meter:
            write_folder(made, {}, tmp_path / dtype, lambda _: None)
        assert largest <= meter.peak_bytes <= 1.5 * largest + MASKS, f"{dtype}: {meter.peak_bytes / 2**20:.0f} MiB"


def cut_by_thirds(weights: Weights) -> list[StateShare]:
    """Of three ranks, each with a third of the rows in one slice."""
    shares: list[list[StateSlice]] = [[], [], []]
    for name, tensor in weights.items():
        first = 0
        for slices, part in zip(shares, tensor.tensor_split(3), strict=True):
            slices.append(StateSlice(PARAMETER, name, tuple(tensor.shape), (first, 0), part))
            first += len(part)
    return [StateShare(slices) for slices in shares]
