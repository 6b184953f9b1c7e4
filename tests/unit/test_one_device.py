"""Forward passes on another device than the host's: no operation mixes tensors of two devices.

There is no such device here: torch's fake tensors compute shapes and devices and no values, and refuse what a CUDA
device would refuse. What reads values (plans, tokens that are drawn) is made before.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rljob_workers.algorithms.metric_totals import StepTotals
from rljob_workers.algorithms.objective import MaskedRows, Outputs
from rljob_workers.algorithms.value import ValueObjective
from rljob_workers.devices import HOST
from rljob_workers.engines.torch_engine.decoder import Decoder as EngineDecoder
from rljob_workers.engines.torch_engine.decoder import KvCache, fuse_weights, geometry_of
from rljob_workers.engines.torch_engine.scheduler import pad_prompts
from rljob_workers.engines.torch_engine.slots import SamplingColumns, draw_tokens, plan_runs
from rljob_workers.models.building import build_config, described_config, initial_state, model_config
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.tensors.columns import Column
from rljob_workers.trainers.flat_critic import ValueDecoder
from rljob_workers.trainers.flat_decoder import Decoder
from rljob_workers.trainers.fsdp.inputs import joined_inputs
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, build_whole, score
from rljob_workers.trainers.micro_batches import RowRange, pack
from rljob_workers.trainers.objectives import policy_objective
from tests.unit.trainers.critics import critic_rows
from tests.unit.trainers.rows import make_rows, make_spec

CUDA = torch.device("cuda", 0)
SPEC = make_spec(dtype="bfloat16", tied=False)
TOKENIZER = build_tokenizer(SPEC.model)
CONFIG = build_config(SPEC.model, TOKENIZER)


@pytest.fixture(autouse=True)
def _no_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)


@pytest.fixture
def fake() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


def test_tensors_of_two_devices_are_refused_here(fake: FakeTensorMode) -> None:
    with fake, pytest.raises(Exception, match="found at least two devices, cuda:0 and cpu"):
        torch.zeros(3, device=CUDA) + torch.zeros(3)


HEADS = pytest.mark.parametrize("head_dtype", [None, torch.float32], ids=["logits as the model", "float32 logits"])


@HEADS
@pytest.mark.parametrize("longest", [12, 60])
def test_a_forward_pass_stays_on_its_device(fake: FakeTensorMode, longest: int, head_dtype: torch.dtype | None) -> None:
    rows = make_rows(0, longest=longest)
    tokens, lengths = rows.tokens, rows.response_lengths
    plan = pack(tokens.values, tokens.offsets, lengths)
    part = RowRange(0, len(lengths), 0, int(lengths.sum()))
    with fake:
        decoder = Decoder(CONFIG, storage=torch.float32, compute=torch.bfloat16, head_dtype=head_dtype, device=CUDA)
        new_log_probs = decoder.log_probs(tokens.values, plan, 1.3)
        assert (new_log_probs.device, new_log_probs.shape) == (CUDA, (part.last_token,))
        objective, columns = policy_objective(SPEC.algorithm, longest), rows.between(part, CUDA)
        masked = MaskedRows(columns[Column.LOSS_MASKS], columns[Column.RESPONSE_LENGTHS])
        sums = objective.loss(Outputs(new_log_probs), columns, masked, objective.weigh(masked).weights)
        totals = StepTotals(objective.metrics, 0, 1)
        buffer = torch.zeros(totals.size, device=CUDA)
        totals.add(buffer, sums, masked)
        assert (sums.loss.device, buffer.device) == (CUDA, CUDA)


def test_a_critic_and_its_metrics_stay_on_their_device(fake: FakeTensorMode) -> None:
    rows = critic_rows(0)
    tokens, lengths = rows.tokens, rows.response_lengths
    plan = pack(tokens.values, tokens.offsets, lengths)
    part = RowRange(0, len(lengths), 0, int(lengths.sum()))
    with fake:
        critic = ValueDecoder(CONFIG, storage=torch.float32, compute=torch.bfloat16, device=CUDA)
        values = critic.values(tokens.values, plan)
        assert (values.device, values.dtype, values.shape) == (CUDA, torch.float32, (part.last_token,))
        objective, columns = ValueObjective(), rows.between(part, CUDA)
        masked = MaskedRows(columns[Column.LOSS_MASKS], columns[Column.RESPONSE_LENGTHS])
        sums = objective.loss(Outputs(values=values), columns, masked, objective.weigh(masked).weights)
        totals = StepTotals(objective.metrics, 0, 1)
        buffer = torch.zeros(totals.size, device=CUDA)
        totals.add(buffer, sums, masked)
        assert (sums.loss.device, buffer.device) == (CUDA, CUDA)


@HEADS
def test_a_forward_pass_of_a_transformers_model_stays_on_its_device(
    fake: FakeTensorMode, head_dtype: torch.dtype | None
) -> None:
    rows = make_rows(0, longest=60)
    inputs, num_responses = joined_inputs(rows.tokens, rows.response_lengths, HOST), int(rows.response_lengths.sum())
    options = ModelOptions(storage=torch.float32, compute=torch.bfloat16, head_dtype=head_dtype)
    model = build_whole(model_config(described_config(SPEC.model, TOKENIZER)), options)
    with fake, torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                setattr(module, name, torch.nn.Parameter(torch.empty_like(parameter, device=CUDA)))
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, torch.empty_like(buffer, device=CUDA))
        for scored in score(model, _moved(inputs), 1.3):
            assert (scored.device, len(scored)) == (CUDA, num_responses)


def _moved(inputs: Any) -> Any:
    """Every tensor in it."""
    if isinstance(inputs, torch.Tensor):
        return inputs.to(CUDA)
    if isinstance(inputs, tuple):
        return tuple(map(_moved, inputs))
    if not is_dataclass(inputs) or isinstance(inputs, type):
        return inputs
    return replace(inputs, **{field.name: _moved(getattr(inputs, field.name)) for field in fields(inputs)})


@HEADS
def test_the_engine_stays_on_its_device(fake: FakeTensorMode, head_dtype: torch.dtype | None) -> None:
    geometry = geometry_of(CONFIG, torch.bfloat16, CUDA, head_dtype)
    padded = pad_prompts([[1, 2, 3], [4, 5]])
    lengths = np.array([3, 2])
    columns = SamplingColumns(
        temperature=np.array([0.7, 0.0], np.float32),
        top_p=np.array([0.9, 1.0], np.float32),
        top_k=np.array([0, 0]),
        min_p=np.array([0.1, 0.0], np.float32),
        seed=np.array([1, 2], np.uint64),
    )
    runs = plan_runs(lengths)
    with fake:
        weights = fuse_weights(initial_state(SPEC.model, TOKENIZER), geometry)
        decoder, cache = EngineDecoder(geometry), KvCache(geometry, 1 << 20)
        cache.reserve(2, 64)
        logits = decoder.prefill(weights, padded.ids, padded.lengths, cache, 0)
        cache.move(torch.tensor([1]), torch.tensor([0]), 3)
        tokens, log_probs = draw_tokens(logits, columns, np.zeros(2, np.int64))
        assert {tokens.device, log_probs.device} == {CUDA}
        logits = decoder.decode(weights, np.array([7, 8]), lengths, runs, cache)
        assert (logits.device, logits.dtype) == (CUDA, torch.float32)
