"""Builders: tiny critics, rows that they are trained on, and what transformers says that their values are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rljob_api.spec.roles import BACKENDS, TrainerBackend
from rljob_api.spec.training import OptimizerSpec
from rljob_workers.models.blob import WEIGHTS_FILE, write_blob
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import Trainer, TrainRows
from rljob_workers.trainers.settings import CriticSettings
from tests.train_rows import replaced
from tests.unit.trainers.rows import make_rows

OPTIMIZER = OptimizerSpec(learning_rate=0.01, weight_decay=0.1, max_grad_norm=0.5, warmup_steps=2)


def settings_of(
    backend: str, model_path: Path | None = None, *, optimizer: OptimizerSpec = OPTIMIZER, clip: float | None = 0.2
) -> CriticSettings:
    (kind,) = (kind for kind in BACKENDS if kind.value == backend)
    return CriticSettings(model_path, optimizer, clip, total_steps=100, backend=TrainerBackend(kind))


def critic_rows(seed: int, *, longest: int = 12) -> TrainRows:
    """Rows of `make_rows` with values of before the step and with returns."""
    rows = make_rows(seed, longest=longest)
    chance = torch.Generator().manual_seed(100 + seed)
    lengths = rows.response_lengths

    def drawn() -> Jagged:
        return Jagged.from_lengths(torch.randn(int(lengths.sum()), generator=chance), lengths)

    return replaced(rows, values=drawn(), returns=drawn(), log_probs=None, advantages=None)


def save_critic(trainer: Trainer, folder: Path, files: dict[str, bytes]) -> Path:
    """The folder of a version, as a single rank makes it; `files` are those beside the weights."""
    folder.mkdir(exist_ok=True)
    write_blob(folder / WEIGHTS_FILE, trainer.stage_weights())
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def logits_of_prefixes(folder: Path, rows: TrainRows) -> torch.Tensor:
    """For each response token the logit of transformers' classifier for all tokens before it, in float64."""
    from transformers import AutoModelForSequenceClassification

    model: Any = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float64)
    parts = []
    with torch.no_grad():
        for tokens, length in zip(rows.tokens.rows(), rows.response_lengths.tolist(), strict=True):
            ends = range(len(tokens) - length, len(tokens))
            # The last token of a classifier is the last one that is no padding: these rows may have such tokens.
            model.config.pad_token_id = None
            parts += [model(input_ids=tokens[None, :end].long()).logits[0, 0] for end in ends]
    return torch.stack(parts)


def assert_is_classifier(folder: Path) -> None:
    """Transformers loads the folder whole, each tensor, and none besides."""
    from transformers import AutoModelForSequenceClassification

    model, report = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert type(model).__name__.endswith("ForSequenceClassification")
    assert model.config.num_labels == 1
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
