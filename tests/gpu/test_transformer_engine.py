"""Megatron on a GPU, with the layers of Transformer Engine and without them, is Megatron on the CPU.

Of each family: weights go in and out bit for bit, log-probs and a step are those of the CPU within what bfloat16
rounds, and a state that one has saved is restored and saved again bit for bit by the same layers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_workers.models.blob import read_blob, read_weights
from rljob_workers.models.slices import EXP_AVG, SavedState
from tests.gpu.megatron_alone import DTYPES, MODELS, NAME
from tests.near import assert_near
from tests.unit.trainers.fsdp.tiny import save_described

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
NO_ENGINE = "Transformer Engine is not installed here: on this machine Megatron computes with its local layers"
CPU, LOCAL, ENGINE = "on the CPU", "with local layers", "with Transformer Engine"
BOUNDS = {"float32": 1e-4, "bfloat16": 3e-2}
"""Of log-probs and entropies, beside the largest; as in test_parity."""
GRADIENT_BOUNDS = {"float32": 2e-3, "bfloat16": 0.2}
"""Of each tensor's first moment, which is its gradient, by length: each product is rounded on its way."""
OF_ENGINE = {
    "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight": ("qwen2", "qwen3", "llama", "qwen3_moe"),
    "decoder.layers.0.mlp.linear_fc1.layer_norm_weight": ("qwen2", "qwen3", "llama"),
    "decoder.layers.1.mlp.experts.linear_fc1.weight3": ("qwen3_moe",),
    "decoder.layers.1.mlp.experts.linear_fc2.weight0": ("qwen3_moe",),
}
"""Parameters that only its layers have, and in which families."""


class Runs:
    """Each way to compute, started when a test first asks for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run = cache(self._started)

    def folder(self, way: str, family: str, dtype: str) -> Path:
        self._run(way)
        return self._folder / way / NAME.format(family=family, dtype=dtype)

    def report(self, way: str, family: str, dtype: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder(way, family, dtype) / "report.json").read_text())
        return found

    def _started(self, way: str) -> None:
        for family, fields in MODELS.items():
            if not (self._folder / family).exists():
                save_described(fields, self._folder / family, torch.bfloat16)  # of which float32 is exact, too
        environment = {"CUDA_VISIBLE_DEVICES": ""} if way == CPU else {}
        command = [sys.executable, "-m", "tests.gpu.megatron_alone", str(self._folder), way]
        done = subprocess.run(
            command if way == ENGINE else [*command, "--without-engine"],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("megatron"))


@pytest.fixture(params=[LOCAL, ENGINE])
def way(request: pytest.FixtureRequest) -> str:
    if request.param == ENGINE and find_spec("transformer_engine") is None:
        pytest.skip(NO_ENGINE)
    return str(request.param)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", MODELS)
def test_layers_are_those_that_are_asked_for(
    runs: Runs, device: torch.device, way: str, family: str, dtype: str
) -> None:
    report = runs.report(way, family, dtype)
    is_engine = way == ENGINE and dtype == "bfloat16" and device.type == "cuda"
    assert (report["device"], report["layers"]) == (str(device), "ENGINE" if is_engine else "LOCAL")
    for name, families in OF_ENGINE.items():
        assert (name in report["names"]) == (is_engine and family in families), name
    assert not report["imports started CUDA"], "ranks are forked after the imports"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", MODELS)
def test_weights_come_out_as_they_went_in(runs: Runs, way: str, family: str, dtype: str) -> None:
    folder = runs.folder(way, family, dtype)
    stored, found = read_weights(folder.parent.parent / family), read_blob(folder / "loaded.safetensors")
    assert found.keys() == stored.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, stored[name].to(getattr(torch, dtype))), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", MODELS)
def test_log_probs_and_a_step_are_those_of_the_cpu(runs: Runs, way: str, family: str, dtype: str) -> None:
    expected, found = (read_blob(runs.folder(one, family, dtype) / "scored.safetensors") for one in (CPU, way))
    for name, values in expected.items():
        assert_near(found[name], values, BOUNDS[dtype], name)
    there, here = (runs.report(one, family, dtype) for one in (CPU, way))
    assert here["loss"] == pytest.approx(there["loss"], rel=BOUNDS[dtype], abs=BOUNDS[dtype])
    assert here["norm"] == pytest.approx(there["norm"], rel=10 * BOUNDS[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", MODELS)
def test_every_gradient_is_that_of_the_cpu(runs: Runs, way: str, family: str, dtype: str) -> None:
    expected, found = (first_moments(runs.folder(one, family, dtype) / "saved") for one in (CPU, way))
    whole = float(torch.cat([tensor.flatten() for tensor in expected.values()]).norm())
    for name, tensor in expected.items():
        error, length = float((found[name] - tensor).norm()), float(tensor.norm())
        # Of a tensor that hardly has a gradient, what is left is what others' rounding makes of it.
        limit = GRADIENT_BOUNDS[dtype] * max(length, 0.05 * whole)
        assert error <= limit, f"{name}: off by {error:.1e} of {length:.1e}, of {whole:.1e} in all"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", MODELS)
def test_what_was_saved_is_restored_bit_for_bit(runs: Runs, way: str, family: str, dtype: str) -> None:
    """Weights, exact weights and moments."""
    folder = runs.folder(way, family, dtype)
    files = sorted((folder / "saved").glob("*.safetensors"))
    assert len(files) >= 2
    for file in files:
        saved, again = read_blob(file), read_blob(folder / "saved again" / file.name)
        assert saved.keys() == again.keys()
        for name, tensor in saved.items():
            assert torch.equal(tensor, again[name]), name


def first_moments(folder: Path) -> dict[str, torch.Tensor]:
    """Whole tensors by their names on the hub."""
    saved = SavedState(folder, "actor")
    whole = {name: torch.full(tensor.shape, torch.nan) for name, tensor in read_weights(folder).items()}
    saved.fill(EXP_AVG, whole)
    return whole
