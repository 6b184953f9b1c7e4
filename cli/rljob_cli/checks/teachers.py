"""Checks a teacher's folder (`roles.reference.modelPath`), without building its model.

For the checks of a manifest, beside `checks.models`. Reads config.json, a tokenizer's files and the heads of
safetensors files, no weight. The role reference asks for the policy's tokens again, where the folder was not here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api.model_files.families import architecture_of
from rljob_api.model_files.hub_names import is_hub_name
from rljob_api.model_files.size import stored_shapes
from rljob_api.model_files.tokens import FIELD, end_of_sequence, teacher_problem, tokens_in, tokens_of
from rljob_api.roles import REFERENCE_ROLE
from rljob_api.spec.model import SPECIAL_TOKENS
from rljob_api.spec.roles import BACKENDS
from rljob_cli.checks.findings import Finding, problem, unchecked, warning
from rljob_cli.checks.models import (
    computes_own_decoder,
    decoder_problem,
    family_finding,
    json_object,
    layout_findings,
    positions_in,
)
from rljob_cli.checks.named_folders import folder_finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rljob_api.spec import RLJobSpec
    from rljob_api.spec.model import ModelSpec

_FIELD = f"spec.{FIELD}"


_CURE = "Give the folder of a causal language model, or leave modelPath out: then the reference is version 0."


_WITHOUT_HEAD = "ForSequenceClassification"


_BACKEND = ("spec.roles.actor.backend", "spec.roles.reference.backend")


def teacher_findings(spec: RLJobSpec, *, is_elsewhere: bool) -> Iterator[Finding]:
    """Findings about a job with absolute paths; none where its reference is a version of the policy."""
    reference = spec.roles.reference
    if reference is None or reference.model_path is None or is_hub_name(reference.model_path):
        return
    if absent := folder_finding(_FIELD, reference.model_path, _CURE, is_elsewhere=is_elsewhere):
        yield absent
        return
    folder = Path(reference.model_path)
    described = json_object(folder / "config.json")
    if described is None:
        yield problem(f"{_FIELD}: {folder}/config.json is no whole JSON object. {_CURE}")
    else:
        yield from _config_findings(spec, folder, described)
    try:
        stored_shapes(folder)
    except ValueError as error:
        yield problem(f"{_FIELD}: {str(error).removeprefix('model.path: ')}")
    yield from _token_findings(spec.model, folder)


def _config_findings(spec: RLJobSpec, folder: Path, described: Mapping[str, Any]) -> Iterator[Finding]:
    name = architecture_of(described)
    if name is not None and name.endswith(_WITHOUT_HEAD):
        yield problem(f"{_FIELD}: {folder}/config.json is of {name}, which has no log-probs. {_CURE}")
    backend = spec.backend_of(REFERENCE_ROLE)
    if BACKENDS[backend].tries_families:
        has_wide_head = spec.head_dtype is not spec.model.dtype
        found = family_finding(folder / "config.json", packing=spec.training.packing, has_wide_head=has_wide_head)
        if found is not None:
            text = found.text.replace("spec.model.path: ", f"{_FIELD}: ", 1)
            yield Finding(found.level, text, ("spec.training.packing", "spec.model", *_BACKEND))
    elif computes_own_decoder(backend) and (why := decoder_problem(described)):
        yield problem(
            f"{_FIELD}: {backend} does not compute the model in {folder}: {why}. Set roles.reference.backend to Fsdp,"
            " or give another model.",
            *_BACKEND,
            "spec.model",
        )
    yield from layout_findings(spec, REFERENCE_ROLE, described)
    positions, longest = positions_in(described.get("text_config") or described), spec.rollout.sampling.max_new_tokens
    if positions is not None and longest >= positions:
        yield problem(
            f"{_FIELD}: {folder} has {positions} positions, which rollout.sampling.maxNewTokens {longest} fills without"
            " a prompt. Give a teacher of longer texts, or fewer tokens.",
            "spec.rollout",
        )


def _token_findings(model: ModelSpec, folder: Path) -> Iterator[Finding]:
    own_tokens, tokens = tokens_of(model), tokens_in(folder)
    wrong = teacher_problem(model, own_tokens, folder, tokens)
    if wrong is not None:
        yield problem(f"spec.{wrong}", "spec.model")
    elif tokens is None or own_tokens is None:
        yield unchecked(
            f"{_FIELD}: without a tokenizer.json beside the teacher and beside the policy it was not looked whether"
            " they have one tokenizer.",
            "spec.model",
        )
    elif (own := _own_end(model)) and (other := end_of_sequence(folder)) and own != other:
        yield warning(
            f"{_FIELD}: the teacher in {folder} ends its texts with {other!r}, and the policy with {own!r}, which a"
            " teacher does not expect: answers may learn not to end. Give a teacher with the policy's end of sequence,"
            " or set eos_token in model.tokenizerPath.",
            "spec.model",
        )


def _own_end(model: ModelSpec) -> str | None:
    folder = model.tokenizer_path or model.path
    return SPECIAL_TOKENS[0] if folder is None else end_of_sequence(Path(folder))
