"""One rank of a world that trains with every backend, and writes down how many bytes it held, by `MemoryMeter`."""

from __future__ import annotations

import gc
import json
import warnings
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from rljob_api.names import Role
from rljob_workers.algorithms.objective import Output
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import (
    build_critic,
    build_forward_model,
    build_trainer,
    load_critic_version_0,
    load_version_0,
)
from rljob_workers.trainers.base import TrainRows
from rljob_workers.trainers.data_parallel import DataParallelGroup, SingleRank
from rljob_workers.trainers.settings import CriticSettings
from tests.integration.trainers.memory_jobs import JOBS, PROMPT_TOKENS, RESPONSE_TOKENS, ROWS, job_of
from tests.integration.trainers.worlds import as_rank
from tests.memory_meter import MemoryMeter
from tests.train_rows import replaced, rows_of


def main(folder: Path, group: DataParallelGroup, mesh: DeviceMesh) -> None:
    del mesh  # each trainer makes its own
    warnings.simplefilter("ignore")
    measured = {name: measure(name, group, folder) for name in JOBS}
    (folder / f"measured{group.rank}.json").write_text(json.dumps(measured))


def measure(name: str, group: DataParallelGroup, folder: Path) -> dict[str, int]:
    spec = job_of(name)
    tokenizer = build_tokenizer(spec.model)
    rows = make_rows(len(tokenizer))
    with MemoryMeter() as meter:
        trainer = build_trainer(spec, tokenizer, group)
        load_version_0(trainer, spec, tokenizer, folder)
        trainer.accumulate(rows)
        gc.collect()
        state = meter.live_bytes
        meter.peak_bytes = 0
        trainer.accumulate(rows)
        trainer.optimizer_step()
        peak = meter.peak_bytes
    with MemoryMeter() as meter:
        model = build_forward_model(spec, tokenizer, Role.ACTOR_FWD, SingleRank())
        gc.collect()
        weights = meter.live_bytes
        meter.peak_bytes = 0
        model.score(rows.tokens, rows.response_lengths, Output.LOG_PROBS, 1.0)
        forward_peak = meter.peak_bytes
    critic_state, critic_peak = measure_critic(name, group, folder)
    return {
        "state": state,
        "peak": peak,
        "weights": weights,
        "forward_peak": forward_peak,
        "critic_state": critic_state,
        "critic_peak": critic_peak,
    }


def measure_critic(name: str, group: DataParallelGroup, folder: Path) -> tuple[int, int]:
    """What is there all the time, and the peak of values and a step."""
    spec = job_of(name)
    tokenizer, settings = build_tokenizer(spec.model), CriticSettings.of(spec)
    rows = make_rows(len(tokenizer))
    ones = rows.columns[Column.ADVANTAGES]
    rows = replaced(rows, values=ones, returns=ones, log_probs=None, advantages=None)
    with MemoryMeter() as meter:
        critic = build_critic(settings, spec, tokenizer, group)
        load_critic_version_0(critic, settings, spec, tokenizer, folder)
        critic.accumulate(rows)
        gc.collect()
        state = meter.live_bytes
        meter.peak_bytes = 0
        critic.score(rows.tokens, rows.response_lengths, Output.VALUES, 1.0)
        critic.accumulate(rows)
        critic.optimizer_step()
        return state, meter.peak_bytes


def make_rows(vocabulary: int) -> TrainRows:
    """Rows of different prompts, as long as the job's can be."""
    length = PROMPT_TOKENS + RESPONSE_TOKENS
    tokens = torch.randint(0, vocabulary, (ROWS * length,), dtype=torch.int32)
    responses = torch.full((ROWS,), RESPONSE_TOKENS)

    def per_token(value: float, dtype: torch.dtype = torch.float32) -> Jagged:
        return Jagged.from_lengths(torch.full((ROWS * RESPONSE_TOKENS,), value, dtype=dtype), responses)

    return rows_of(
        tokens=Jagged.from_lengths(tokens, torch.full((ROWS,), length)),
        response_lengths=responses,
        loss_masks=per_token(1, torch.uint8),
        log_probs=per_token(-2.0),
        rollout_log_probs=per_token(-2.0),
        advantages=per_token(1.0),
        ref_log_probs=None,
    )


if __name__ == "__main__":
    as_rank(main)
