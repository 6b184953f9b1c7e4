"""The weights that `rljob evaluate` is given: which files they are, whether they are whole, and of the job's model.

For `rollout.checkpoint_evaluation`. A record and a Hugging Face folder look alike here: a record is such a folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api.roles import LEADING_ROLE
from rljob_api.spec import RLJobSpec
from rljob_workers.dcs.checkpoints.description import damage_in, described_model, expected_files, find_record
from rljob_workers.dcs.checkpoints.export import RecordedWeights
from rljob_workers.dcs.checkpoints.on_disk import parse_damaged, parse_folder
from rljob_workers.dcs.errors import CheckpointDamaged
from rljob_workers.models.blob import INDEX_FILE
from rljob_workers.models.building import CONFIG_FILE, build_config, check_fit, described_config, weight_files

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rljob_workers.dcs.checkpoints.description import Record

COMPARED = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_experts",
    "vocab_size",
)
"""Fields of config.json that make a model another one."""


@dataclass(frozen=True, slots=True)
class EvaluatedWeights:
    """Weights on disk."""

    folder: Path
    version: int | None
    """Of a record under its own name; None for any other folder."""
    files: tuple[Path, ...]
    """Safetensors, in the order of the parts."""

    def link_in(self, folder: Path) -> None:
        """Makes `folder`, with these files and their index alone: beside them a record has files that are no weights.

        An engine may load all of a folder.
        """
        folder.mkdir(parents=True, mode=0o700)
        for file in self.files:
            (folder / file.name).symlink_to(file)
        if len(self.files) > 1:
            shutil.copyfile(self.folder / INDEX_FILE, folder / INDEX_FILE)


def find_weights(folder: Path) -> tuple[EvaluatedWeights, Record | None]:
    """Those of a record, of the latest one in a folder of records, or of a Hugging Face folder. ValueError of none."""
    record = _record_in(folder)
    place = folder.resolve() if record is None else record.folder
    try:
        files = tuple(weight_files(place))
    except ValueError as error:
        raise ValueError(f"--checkpoint: {str(error).removeprefix('model.path: ')}") from error
    named = None if record is None else record.written_as
    return EvaluatedWeights(place, None if named is None else named.version, files), record


def _record_in(folder: Path) -> Record | None:
    """None: it is a Hugging Face folder."""
    named = parse_folder(folder.resolve().name, is_recorded=False) or parse_damaged(folder.resolve().name)
    try:
        return find_record(folder)
    except ValueError as error:
        if named is None and (folder / CONFIG_FILE).is_file():
            return None
        raise ValueError(f"--checkpoint: {error}") from error


def verify_weights(weights: EvaluatedWeights, record: Record) -> None:
    """Reads every file. CheckpointDamaged for the first one that is not what was written."""
    expected = expected_files(record, [LEADING_ROLE])
    for damage in damage_in({path: expected[path] for path in weights.files if path in expected}, lambda _: None):
        raise CheckpointDamaged(record.folder, f"is damaged: {damage} (--no-verify evaluates it all the same)")


def require_model(weights: EvaluatedWeights, job: RLJobSpec, tokenizer: PreTrainedTokenizerBase) -> None:
    """ValueError, which names the first difference, where the weights are of another model than the job's."""
    ours, theirs = described_config(job.model, tokenizer), described_model(weights.folder)
    different = first_difference(theirs, ours)
    if different is not None:
        raise ValueError(
            f"--checkpoint: {weights.folder} is of another model than spec.model: its {different} is"
            f" {theirs[different]}, and spec.model has {ours[different]}. Give a checkpoint of this job's model, or the"
            " manifest that it was trained by."
        )
    shapes = RecordedWeights(weights.folder, LEADING_ROLE, None).meta()
    if job.roles.rollout.engine.traits.plain_decoder_only:  # another one knows the shapes of more families itself
        check_fit(shapes, build_config(job.model, tokenizer), source=f"the weights in {weights.folder}")


def first_difference(theirs: Mapping[str, Any], ours: Mapping[str, Any], of: Collection[str] = COMPARED) -> str | None:
    """The first field in which two config.json differ that both have."""
    both = (name for name in of if theirs.get(name) is not None and ours.get(name) is not None)
    return next((name for name in both if theirs[name] != ours[name]), None)
