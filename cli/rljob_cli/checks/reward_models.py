"""Checks the folder that a critic begins with (`roles.critic.modelPath`), without building its model.

For the checks of a manifest, beside `checks.models`. Reads config.json and the heads of safetensors files, no weight.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api.model_files.families import architecture_of
from rljob_api.model_files.hub_names import is_hub_name
from rljob_api.model_files.size import stored_shapes
from rljob_api.model_files.tokens import embedding_rows, policy_rows
from rljob_api.roles import VALUE_ROLE
from rljob_cli.checks.findings import Finding, problem
from rljob_cli.checks.models import (
    computes_own_decoder,
    decoder_problem,
    json_object,
    layout_findings,
)
from rljob_cli.checks.named_folders import folder_finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rljob_api.spec import RLJobSpec

_FIELD = "spec.roles.critic.modelPath"


_KIND = "ForSequenceClassification"


_LABELS_OF_TRANSFORMERS = 2
"""Where a config.json says nothing of labels."""


_VALUE_HEAD = "score.weight"


_CURE = (
    "Give the folder of a reward model, or leave modelPath out: then the critic begins as the policy with a new head."
)


def reward_model_findings(spec: RLJobSpec, *, is_elsewhere: bool) -> Iterator[Finding]:
    """Findings about a job with absolute paths; none where its critic begins as the policy does."""
    critic = spec.roles.critic
    if critic is None or critic.model_path is None or is_hub_name(critic.model_path):
        return
    if absent := folder_finding(_FIELD, critic.model_path, _CURE, is_elsewhere=is_elsewhere):
        yield absent
        return
    folder = Path(critic.model_path)
    described = json_object(folder / "config.json")
    if described is None:
        yield problem(f"{_FIELD}: {folder}/config.json is no whole JSON object. {_CURE}")
    else:
        yield from _config_findings(spec, folder, described)
    yield from _head_findings(folder)


def _config_findings(spec: RLJobSpec, folder: Path, described: Mapping[str, Any]) -> Iterator[Finding]:
    name = architecture_of(described) or "no architecture"
    if not name.endswith(_KIND):
        yield problem(f"{_FIELD}: {folder}/config.json is of {name}, which has no head of values. {_CURE}")
        return  # its labels would be those of a head that it does not have
    if (labels := _num_labels(described)) != 1:
        yield problem(
            f"{_FIELD}: {folder}/config.json is of a model with {labels} labels, but a token has one value. Give a"
            " reward model of one label."
        )
    rows, wanted = embedding_rows(described), policy_rows(spec.model)
    if rows is not None and wanted is not None and rows != wanted:
        yield problem(
            f"{_FIELD}: {folder} has a vocabulary of {rows} tokens, and the policy one of {wanted}, but both read the"
            " policy's tokens. Give a reward model with the policy's tokenizer.",
            "spec.model",
        )
    backend = spec.backend_of(VALUE_ROLE)
    if computes_own_decoder(backend) and (why := decoder_problem(described)):
        yield problem(
            f"{_FIELD}: {backend} does not compute the model in {folder}: {why}. Set roles.critic.backend to Fsdp, or"
            " give another model.",
            "spec.roles.critic.backend",
            "spec.roles.actor.backend",
        )
    yield from layout_findings(spec, VALUE_ROLE, described)


def _num_labels(described: Mapping[str, Any]) -> int:
    """As transformers counts them."""
    names, number = described.get("id2label"), described.get("num_labels")
    if isinstance(names, dict) and names:
        return len(names)
    return number if type(number) is int else _LABELS_OF_TRANSFORMERS


def _head_findings(folder: Path) -> Iterator[Finding]:
    try:
        stored = stored_shapes(folder)
    except ValueError as error:
        yield problem(f"{_FIELD}: {str(error).removeprefix('model.path: ')}")
        return
    if _VALUE_HEAD not in stored:
        yield problem(f"{_FIELD}: {folder} has no tensor {_VALUE_HEAD}, the head of a reward model. {_CURE}")
