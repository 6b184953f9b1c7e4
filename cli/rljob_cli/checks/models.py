"""Checks a job's model without building it, from its folder's config.json and its tokenizer's files.

Whether trainer and engine compute it, whether rows fit, whether each token has a row of the embedding. A family without
a proven table entry is proven by a process with torch, once for a config and the installed versions; the user's cache
keeps the result. JSON is parsed as Python's own module does, and so transformers: with NaN, Infinity and long integers.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from rljob_api.engines import PROGRAM_ENGINE
from rljob_api.metric_names import Needs, names_that_need
from rljob_api.model_files.decoder_config import read_config
from rljob_api.model_files.families import (
    EXIT_NOT_PROVEN,
    FamilyProof,
    NotProven,
    family_problem,
    needs_proof,
    retained_proof,
)
from rljob_api.model_files.hub_names import is_hub_name
from rljob_api.model_files.parallel_layout import experts_problem, layout_problem, recomputed_problem
from rljob_api.model_files.tokens import embedding_rows
from rljob_api.roles import TRAITS, field_name
from rljob_api.spec.measured import measured_metrics
from rljob_api.spec.roles import BACKENDS, CriticSpec, ModelRoleSpec, ReferenceSpec
from rljob_cli.checks.findings import Finding, problem, unchecked, warning
from rljob_cli.checks.named_folders import folder_finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rljob_api.names import Role
    from rljob_api.spec import RLJobSpec
    from rljob_api.spec.engine import EngineSpec
    from rljob_api.spec.model import ModelSpec
    from rljob_api.spec.roles import TrainerBackend


def parsed(text: bytes) -> Any:  # noqa: ANN401 - JSON
    """Parses a text; ValueError where it is no JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # stricter than what reads the file later
        return json.loads(text)


_PROOF = "rljob_workers.trainers.fsdp.proof"


_LONGEST_SECONDS = 300
"""For the proof, imports included, on a machine that has much else to do."""


def family_finding(file: Path, *, packing: bool, has_wide_head: bool) -> Finding | None:
    """None, too, for a config.json that is not whole: building the model names what is wrong."""
    try:
        described = parsed(file.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(described, dict):
        return None
    wrong = family_problem(described)
    if wrong is None and needs_proof(described):
        try:
            proof = retained_proof(described) or _made_proof(file, described)
        except NotProven as error:
            return unchecked(f"spec.{error}")
        except ValueError as error:
            return problem(f"spec.{error}")
        if proof is not None:
            wrong = proof.problem(described, packing=packing, has_wide_head=has_wide_head)
    return None if wrong is None else problem(f"spec.{wrong}")


def _made_proof(file: Path, described: Mapping[str, Any]) -> FamilyProof | None:
    """Proof by a process; None without its libraries. ValueError with its sentence, NotProven if it may try again."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        return None
    command = [sys.executable, "-m", _PROOF, str(file)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LONGEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotProven.now(described, f"it took longer than {_LONGEST_SECONDS} s") from None
    if done.returncode == 0:
        return FamilyProof(**orjson.loads(done.stdout.splitlines()[-1]))
    last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
    if done.returncode == EXIT_NOT_PROVEN:
        raise NotProven(last)
    if last.startswith("model.path: "):
        raise ValueError(last)
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    raise NotProven.now(described, f"its process ended with {how}: {last}")


_CHECKPOINT_FILES = (
    (("config.json",), "its config"),
    (("model.safetensors", "model.safetensors.index.json"), "safetensors weights"),
)


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


_BACKEND = ("spec.roles.actor.backend", "spec.roles.rollout.engine.kind", "spec.roles.rollout.gpus")
"""Fields by which it is known what trains and what generates."""


_POSITIONS = ("max_position_embeddings", "n_positions")
"""The longest sequence, as families call it in config.json."""


_TRAINED_LENGTH = "original_max_position_embeddings"


_LARGEST_FACTOR = 1e6


def model_findings(spec: RLJobSpec, *, is_elsewhere: bool) -> Iterator[Finding]:
    """Findings about a job with absolute paths. `is_elsewhere`: it is for a cluster, whose folders need not be here."""
    model = spec.model
    absent: Finding | None = None
    for field, path, what in (
        ("tokenizerPath", model.tokenizer_path, "a tokenizer"),
        ("path", model.path, "a Hugging Face checkpoint"),
    ):
        cure = f"Give the folder of {what}."
        if path is None or is_hub_name(path):  # a name that the cache lacks is reported for all fields together
            continue
        absent = folder_finding(f"spec.model.{field}", path, cure, is_elsewhere=is_elsewhere)
        if absent is not None:
            yield absent
    if model.path is not None and Path(model.path).is_dir() and absent is None:
        yield from _folder_findings(spec, Path(model.path))
    yield from _tokenizer_findings(model)


def _folder_findings(spec: RLJobSpec, folder: Path) -> Iterator[Finding]:
    for names, what in _CHECKPOINT_FILES:
        if not any((folder / name).is_file() for name in names):
            yield problem(f"spec.model.path: {folder} has no {' or '.join(names)}. Give a checkpoint with {what}.")
    if spec.model.tokenizer_path is None and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        text = f"spec.model.path: {folder} has no tokenizer. Give model.tokenizerPath."
        yield problem(text, "spec.model.tokenizerPath")
    described = json_object(folder / "config.json")
    if described is None:
        if (folder / "config.json").is_file():
            yield problem(f"spec.model.path: {folder}/config.json is no whole JSON object. Copy it again.")
        return
    yield from _computing_findings(spec, folder, described)
    yield from _position_findings(spec, described)
    yield from _window_findings(spec, described)


def _computing_findings(spec: RLJobSpec, folder: Path, described: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether trainer and engine compute this family."""
    roles = [role for role in spec.roles.present() if _computes_policy(spec, role)]
    backends = {spec.backend_of(role): role for role in reversed(roles)}
    if any(BACKENDS[backend].tries_families for backend in backends):
        has_wide_head = spec.head_dtype is not spec.model.dtype
        file = folder / "config.json"
        found = family_finding(file, packing=spec.training.packing, has_wide_head=has_wide_head)
        if found is not None:
            uses = (*_BACKEND, "spec.model", "spec.training.packing", "spec.roles.actor.gpus")
            yield Finding(found.level, found.text, uses)
    for role in roles:
        yield from layout_findings(spec, role, described)
    reason = decoder_problem(described)
    if reason is None:
        return
    engine = spec.roles.rollout.engine
    is_plain = engine.traits.plain_decoder_only
    for backend, role in backends.items():
        if computes_own_decoder(backend):
            field = f"roles.{field_name(role)}.backend"
            cure = f"Set {field} to Fsdp" + (f" and engine.kind: {PROGRAM_ENGINE}" if is_plain else "")
            yield problem(
                f"spec.{field}: {backend} does not compute this model: {reason}. {cure}, or give another model.",
                *_BACKEND,
                f"spec.{field}",
                "spec.model.path",
            )
            return
    if is_plain:
        yield problem(
            f"spec.roles.rollout.engine.kind: {engine.kind} does not compute this model: {reason}. Set engine.kind:"
            f" {PROGRAM_ENGINE}, or give another model.",
            *_BACKEND,
            "spec.model.path",
        )


def _computes_policy(spec: RLJobSpec, role: Role) -> bool:
    """Whether the ranks of a role hold the policy's model, and none of a folder of their own."""
    given = spec.roles.of(role)
    has_folder = isinstance(given, CriticSpec | ReferenceSpec) and given.model_path is not None
    return isinstance(given, ModelRoleSpec) and not has_folder


def computes_own_decoder(backend: TrainerBackend) -> bool:
    """Whether it computes what `decoder_problem` finds no fault with, and nothing else."""
    traits = BACKENDS[backend]
    return traits.computes and not traits.tries_families and not traits.lays_out


def layout_findings(spec: RLJobSpec, role: Role, described: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings about a role whose ranks may share the model of this config.json; none where its backend cannot."""
    if not BACKENDS[spec.backend_of(role)].lays_out:
        return
    wrong = layout_problem(described, spec.parallelism_of(role))
    if wrong is not None:
        field = f"spec.roles.{field_name(role)}"
        yield problem(f"{field}.{wrong}", *_BACKEND, field, "spec.model.path")
    if not TRAITS[role].saves:
        return
    training = spec.training
    if training.experts is not None and (unbalanced := experts_problem(described)) is not None:
        yield problem(f"spec.{unbalanced}", *_BACKEND, "spec.training.experts", "spec.model.path")
    if TRAITS[role].leads and experts_problem(described) is not None:
        for field, metric in measured_metrics(spec):
            if metric in names_that_need(Needs.EXPERTS):
                text = f"spec.{field}: {metric} is of a model with experts, and that of its config.json has none."
                yield problem(f"{text} Give another metric.", *_BACKEND, f"spec.{field}", "spec.model.path")
    absent = recomputed_problem(described, training.recompute_modules or ())
    if absent is not None:
        yield problem(f"spec.{absent}", *_BACKEND, "spec.training.recomputeModules", "spec.model.path")


def decoder_problem(described: Mapping[str, Any]) -> str | None:
    """Why neither the backend Flat nor the engine Torch computes a model of this config.json, as part of a sentence."""
    try:
        read_config(described)
    except ValueError as error:
        # Their sentence ends with a cure of its own, for users without another engine.
        reason = str(error).removeprefix("model.path: ").rsplit(". ", 1)[0]
        return reason.replace("the torch trainer and engine know", "it knows").replace("the torch trainer", "it")
    return None


def _position_findings(spec: RLJobSpec, described: Mapping[str, Any]) -> Iterator[Finding]:
    positions = max_positions(spec, described)
    longest = spec.rollout.sampling.max_new_tokens
    if positions is not None and longest >= positions:
        yield problem(
            f"spec.rollout.sampling.maxNewTokens: {longest} leaves no room for a prompt in the {positions} positions of"
            f" the model in {spec.model.path}. Give less than {positions}, or another model.",
            "spec.model.path",
            "spec.roles.rollout",
        )


def _window_findings(spec: RLJobSpec, described: Mapping[str, Any]) -> Iterator[Finding]:
    """Weights of version 0 are proven by 64 tokens: a window beyond them is not felt there, but in longer samples."""
    window, family = described.get("sliding_window"), described.get("model_type")
    longest = spec.rollout.sampling.max_new_tokens + (spec.rollout.max_prompt_tokens or 0)
    engine = spec.roles.rollout.engine
    is_without = family in engine.traits.without_window
    if not is_without or type(window) is not int or not described.get("use_sliding_window", True):
        return
    if 0 < window < longest:
        yield warning(
            f"spec.roles.rollout.engine.kind: the model in {spec.model.path} has a sliding window of {window} tokens,"
            f" which {engine.kind} does not have for {family}: samples of up to {longest} tokens are generated by"
            " another distribution than the trainer's. Give a lower maxNewTokens or maxPromptTokens, or another model.",
            "spec.model.path",
            "spec.rollout",
        )


def max_positions(spec: RLJobSpec, described: Mapping[str, Any]) -> int | None:
    """Longest sequence that the engine may take of the model of a config.json; None where that does not say."""
    engine, inner = spec.roles.rollout.engine, described.get("text_config")
    given = _given_length(engine)
    for fields in (inner if isinstance(inner, dict) else {}, described):
        if (positions := positions_in(fields)) is not None:
            return given or int(positions * (_stretch(fields) if engine.traits.stretches_positions else 1))
    return given


def positions_in(described: Mapping[str, Any]) -> int | None:
    """Positions of the model of a config.json, or of a part of it; None where it does not say."""
    given = (described.get(name) for name in _POSITIONS)
    return next((value for value in given if type(value) is int and value > 0), None)


def _given_length(engine: EngineSpec) -> int | None:
    """The length of the engine's flags; in the last one, as it takes them."""
    flag = engine.traits.length_flag
    found = re.findall(rf"{flag}[ =](\d+)", " ".join(engine.args)) if flag else []
    return int(found[-1]) if found else None


def _stretch(fields: Mapping[str, Any]) -> float:
    """The factor by which such an engine takes sequences to be longer than the positions, by the rotary embedding.

    None for Llama 3, and none where the length of the training stands beside the factor: the positions are those of
    the whole then. Newer versions of transformers write that length for yarn by themselves, older ones do not.
    """
    rope = fields.get("rope_scaling") or fields.get("rope_parameters")
    if not isinstance(rope, dict) or rope.get("rope_type") == "llama3" or _TRAINED_LENGTH in rope:
        return 1
    factor = rope.get("factor")
    return factor if isinstance(factor, int | float) and 0 < factor < _LARGEST_FACTOR else 1


def _tokenizer_findings(model: ModelSpec) -> Iterator[Finding]:
    """Whether each token has a row of the embedding: a server that is given one without dies of it."""
    folder = model.tokenizer_path or model.path
    if folder is None or not Path(folder).is_dir():
        return
    rows, source = _embedding_rows(model)
    if rows is None:
        return
    field = "tokenizerPath" if model.tokenizer_path else "path"
    size = num_tokens(Path(folder))
    if size is None:
        yield unchecked(
            f"spec.model.{field}: {folder} has no tokenizer.json, so that it was not looked whether its tokenizer has"
            " more tokens than the model.",
            "spec.model",
        )
    elif size > rows:
        yield problem(
            f"spec.model.{field}: the tokenizer in {folder} has {size} tokens, but the model only {rows} ({source})."
            " Give the model's own tokenizer, or weights that were made for this one.",
            "spec.model",
        )


def _embedding_rows(model: ModelSpec) -> tuple[int | None, str]:
    if model.config is not None:
        return model.config.vocab_size, "model.config.vocabSize"
    described = json_object(Path(model.path or "") / "config.json") or {}
    return embedding_rows(described), "vocab_size in its config.json"


def num_tokens(folder: Path) -> int | None:
    """Tokens of the tokenizer of a folder, with those that were added; None where its files cannot be read."""
    described = json_object(folder / "tokenizer.json")
    inner = described.get("model") if described is not None else None
    vocabulary = inner.get("vocab") if isinstance(inner, dict) else None
    if not isinstance(vocabulary, dict | list) or described is None:
        return None
    known = set(vocabulary) if isinstance(vocabulary, dict) else {entry[0] for entry in vocabulary if entry}
    added = {entry["content"] for entry in described.get("added_tokens") or () if "content" in entry}
    own = json_object(folder / "tokenizer_config.json") or {}
    more = own.get("added_tokens_decoder")
    if isinstance(more, dict):
        added |= {entry["content"] for entry in more.values() if isinstance(entry, dict) and "content" in entry}
    return len(known | added)


def has_chat_template(folder: Path) -> bool:
    """Whether the tokenizer of a folder has a chat template."""
    own = json_object(folder / "tokenizer_config.json") or {}
    file = folder / "chat_template.jinja"
    texts = [str(own.get("chat_template") or ""), file.read_text(errors="replace") if file.is_file() else ""]
    return any("role" in text for text in texts)


def json_object(file: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is none."""
    try:
        described = parsed(file.read_bytes())
    except (OSError, ValueError):
        return None
    return described if isinstance(described, dict) else None
