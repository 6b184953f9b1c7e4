"""Families that no test holds: a small twin shows which are computed right, joined and padded, and what is not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from rljob_api.model_files.families import FamilyProof, NotProven, keep_proof, retained_proof
from rljob_workers.models.building import model_config
from rljob_workers.trainers.fsdp import proof, twin
from rljob_workers.trainers.fsdp.proof import require_right
from rljob_workers.trainers.fsdp.sharded_model import build_whole
from rljob_workers.trainers.fsdp.twin import prove, twin_configs

NOT_ALONE = r"log-probs of its twin are off by \d"

FAMILIES = [
    pytest.param(
        "opt",
        {"layerdrop": 0.5, "dropout": 0.5, "vocab_size": 61},
        None,
        None,
        id="opt: skipped layers, calls of dropout",
    ),
    pytest.param("biogpt", {"activation_dropout": 0.5}, None, None, id="biogpt: dropout of activations"),
    pytest.param("gpt_bigcode", {"attn_pdrop": 0.5}, None, None, id="gpt_bigcode: dropout by a rate of the module"),
    pytest.param("gpt_neox", {}, None, None, id="gpt_neox: another name for the head"),
    pytest.param("mixtral", {"router_jitter_noise": 0.5}, None, None, id="mixtral: experts of other names, noise"),
    pytest.param("xglm", {"layerdrop": 0.5}, NOT_ALONE, None, id="xglm: an attention of its own"),
    pytest.param("bloom", {}, NOT_ALONE, None, id="bloom: distances"),
    pytest.param("llama4_text", {"num_local_experts": 2}, NOT_ALONE, None, id="llama4_text: attention in chunks"),
    pytest.param("falcon", {}, "computing it raises", None, id="falcon: attention by a table of its own"),
    pytest.param("persimmon", {}, None, None, id="persimmon: dropout as a module of that name"),
    pytest.param("gpt_oss", {}, "its attention has sinks", None, id="gpt_oss: sinks"),
    pytest.param("bert", {}, NOT_ALONE, NOT_ALONE, id="bert: sees what comes after"),
]


@pytest.mark.parametrize(("kind", "fields", "packed", "padded"), FAMILIES)
def test_a_twin_shows_what_is_right(kind: str, fields: dict[str, Any], packed: str | None, padded: str | None) -> None:
    found = prove(model_config({"model_type": kind, **fields}).to_dict())
    for one, expected in ((found.packed, packed), (found.padded, padded)):
        assert (one is None) == (expected is None), one
        assert re.search(expected or "", one or ""), one
    assert found.head is None


PASSING = [
    pytest.param("save_pretrained", OSError(28, "No space left on device"), id="a full disk"),
    pytest.param(
        "save_pretrained",
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        id="a full disk, by safetensors",
    ),
    pytest.param("forward", MemoryError(), id="no memory"),
    pytest.param(
        "forward",
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 4 GB"),
        id="no memory, by torch",
    ),
    pytest.param(
        "forward", ImportError("this model requires the package einops"), id="a package that is not there yet"
    ),
]


@pytest.mark.parametrize("place", ["the twin's own", "the trainer's"])
@pytest.mark.parametrize(("method", "error"), PASSING)
def test_what_passes_is_no_proof_and_is_not_retained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception, place: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    described = model_config({"model_type": "opt"}).to_dict()
    if place == "the trainer's":
        monkeypatch.setattr(twin, "load_folder", fails)
    else:
        monkeypatch.setattr(f"transformers.OPTForCausalLM.{method}", fails)
    with pytest.raises(
        NotProven, match=r"^model\.path: .* model_type 'opt' .* could not be shown now: .*Try again"
    ) as seen:
        require_right(described, packing=True)
    assert _first(error) in str(seen.value)
    assert not list(tmp_path.rglob("*.json"))
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    require_right(described, packing=True)


def _first(error: Exception) -> str:
    return str(error) or type(error).__name__


def test_a_head_that_is_no_matrix_is_known_before_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    made = twin._made

    def made_with_another_head(small: dict[str, Any]) -> Any:
        model = made(small)
        monkeypatch.setattr(model, "get_output_embeddings", torch.nn.Identity)
        return model

    monkeypatch.setattr(twin, "_made", made_with_another_head)
    found = prove(model_config({"model_type": "opt"}).to_dict())
    assert (found.packed, found.padded, found.head) == (None, None, "its head is not one matrix")
    assert found.problem({"model_type": "opt"}, packing=True, has_wide_head=False) is None
    assert found.problem({"model_type": "opt"}, packing=True, has_wide_head=True) == (
        "model.headDtype: float32 logits of a model whose config.json has model_type 'opt' are not computed right: its"
        " head is not one matrix. Set model.headDtype to what model.dtype is."
    )


def test_logits_that_a_family_rounds_for_itself_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import OPTForCausalLM

    own = OPTForCausalLM.forward

    def rounds(self: OPTForCausalLM, *args: Any, **kwargs: Any) -> Any:
        found = own(self, *args, **kwargs)
        found.logits = found.logits.to(self.lm_head.weight.dtype).float()
        return found

    monkeypatch.setattr(OPTForCausalLM, "forward", rounds)
    found = prove(model_config({"model_type": "opt"}).to_dict())
    assert (found.packed, found.head) == (None, "its forward pass rounds them to bfloat16")


def test_a_head_that_does_more_than_a_product_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import OPTForCausalLM

    monkeypatch.setattr(OPTForCausalLM, "get_output_embeddings", lambda self: self.model.decoder.layers[0].fc1)
    found = prove(model_config({"model_type": "opt"}).to_dict())
    assert found.packed is None
    assert found.head is not None


def test_a_trainer_that_leaves_dropout_on_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin, "build_whole", lambda config, options: build_whole(config, options).train())
    found = prove(model_config({"model_type": "opt", "dropout": 0.1, "layerdrop": 0.0}).to_dict())
    assert found.padded is not None
    assert re.search(NOT_ALONE, found.padded)


def test_a_twin_is_shallow_and_narrow_and_has_every_kind_of_layer() -> None:
    described = {
        "model_type": "qwen2",
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "intermediate_size": 29568,
        "num_hidden_layers": 80,
        "use_sliding_window": True,
        "sliding_window": 4096,
        "layer_types": ["full_attention"] * 60 + ["sliding_attention"] * 20,
        "eos_token_id": 151645,
    }
    small = next(iter(twin_configs(model_config(described))))
    assert (small["num_hidden_layers"], small["layer_types"]) == (2, ["full_attention", "sliding_attention"])
    assert (small["num_attention_heads"], small["num_key_value_heads"], small["hidden_size"]) == (4, 2, 512)
    assert (small["sliding_window"], small["intermediate_size"]) == (5, 64)
    assert small["eos_token_id"] < small["vocab_size"] < 100


def test_a_proof_is_made_once_and_its_sentence_names_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def prove_once(described: dict[str, Any]) -> FamilyProof:
        made.append(described)
        return FamilyProof(packed="rows see each other", padded=None, head=None)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(twin, "prove", prove_once)
    described = {"model_type": "bloom", "n_layer": 30}
    for _ in range(2):
        require_right(described, packing=False)
        with pytest.raises(
            ValueError, match=r"^model\.path: .* 'bloom', whose packed .*: rows see each other\. Set training"
        ):
            require_right(described, packing=True)
    assert made == [described]
    require_right({"model_type": "qwen3"}, packing=True)  # of the table
    require_right({**described, "n_layer": 24}, packing=False)
    assert len(made) == 2
    (tmp_path / "rljob" / "families" / next((tmp_path / "rljob" / "families").iterdir()).name).write_text("{}")
    assert [retained_proof({**described, "n_layer": layers}) for layers in (30, 24)].count(None) == 1


def test_a_user_without_a_home_has_it_made_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 1_234_567)
    keep_proof({"model_type": "opt"}, FamilyProof(packed=None, padded=None, head=None))
    assert retained_proof({"model_type": "opt"}) is None


def test_the_proof_of_a_process_is_printed_for_who_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
    (tmp_path / "a file").write_text("so that nothing can be kept")
    monkeypatch.setattr(
        twin, "prove", lambda described: FamilyProof(packed=described["model_type"], padded=None, head="no matrix")
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "opt"}))
    proof.main(tmp_path / "config.json")
    assert json.loads(capsys.readouterr().out) == {"packed": "opt", "padded": None, "head": "no matrix"}
