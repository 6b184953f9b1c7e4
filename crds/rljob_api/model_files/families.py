"""Model families that the backend Fsdp computes: the table of tested ones, and stored proofs of others.

The tests of the workers compare each row of the table with the numbers of transformers, packed. Another family is
proven on a small twin before it trains (`rljob_workers.trainers.fsdp.proof`), or refused. The proof is stored in the
cache folder of the user by config and versions, so that the command line, which has no torch, reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FAMILIES: Mapping[str, str] = {
    "qwen2": "Qwen2 and Qwen2.5",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3 with experts; its files have a tensor for each expert",
    "llama": "Llama 2 and 3, with 3's scaled rotary embedding",
    "mistral": "Mistral, with its sliding window",
    "gemma2": "Gemma 2, with capped scores and logits",
    "gemma3_text": "Gemma 3, the models of text alone",
}
"""model_type in config.json -> what it is."""


_ROTARY_BY_LONGEST_ROW = ("dynamic", "longrope")
"""Rotary embeddings whose angles depend on the longest row of a batch."""


def architecture_of(described: Mapping[str, Any]) -> str | None:
    """The class of transformers that a config.json names first."""
    names = described.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else None


def family_problem(described: Mapping[str, Any]) -> str | None:
    """Why nothing here computes the model of this config.json right, whatever its family; else None."""
    if not isinstance(described.get("model_type"), str):
        return (
            f"model.path: its config.json has model_type {described.get('model_type')!r}, which is no name of a family."
            " Give a causal language model as transformers saves it."
        )
    if described.get("use_bidirectional_attention"):
        return (
            "model.path: its config.json has use_bidirectional_attention, but a policy is asked for each next token"
            " by what stands before it. Give a causal language model."
        )
    for field in ("rope_parameters", "rope_scaling"):
        for rotary in _rotary_kinds(described.get(field)):
            if rotary in _ROTARY_BY_LONGEST_ROW:
                return (
                    f"model.path: its config.json has the rotary embedding {rotary!r}, whose angles depend on the"
                    " longest row of a batch, so that a row's log-probs would depend on its neighbours. Give a model"
                    " with another one."
                )
    return None


def _rotary_kinds(parameters: object) -> Iterator[str]:
    """The kind of a model, or of each kind of its layers; older files call it `type`."""
    if isinstance(parameters, Mapping):
        for name in ("rope_type", "type"):
            if isinstance(parameters.get(name), str):
                yield parameters[name]
        for inner in parameters.values():
            yield from _rotary_kinds(inner)


EXIT_NOT_PROVEN = 75
"""Exit code of the process that makes a proof: sysexits.h gives it to a failure that may be tried again."""


_PACKAGES = ("rljob", "torch", "transformers")


_NOT_OF_THE_MODEL = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")


@dataclass(frozen=True, slots=True)
class FamilyProof:
    """The result for each layout of rows: None where a small twin came out right, else what did not."""

    packed: str | None
    padded: str | None
    head: str | None
    """The same of logits in a wider type than that of the model (`model.headDtype`)."""

    def problem(self, described: Mapping[str, Any], *, packing: bool, has_wide_head: bool) -> str | None:
        """A sentence with the field that can be changed, or None."""
        found = self.packed if packing else self.padded
        if found is None:
            return self._problem_of_head(described) if has_wide_head else None
        cure = "Give a model of another family."
        if packing and self.padded is None:
            cure = "Set training.packing to false, which computes its rows padded instead, and right."
        rows = "packed" if packing else "padded"
        return (
            f"model.path: its config.json has model_type {described.get('model_type')!r}, whose {rows} rows are not"
            f" computed right: {found}. {cure}"
        )

    def _problem_of_head(self, described: Mapping[str, Any]) -> str | None:
        if self.head is None:
            return None
        return (
            f"model.headDtype: float32 logits of a model whose config.json has model_type"
            f" {described.get('model_type')!r} are not computed right: {self.head}. Set model.headDtype to what"
            " model.dtype is."
        )


class NotProven(RuntimeError):
    """Whether a model is computed right could not be shown, for a reason that passes: nothing is kept of it."""

    @classmethod
    def now(cls, described: Mapping[str, Any], reason: str) -> NotProven:
        """With a sentence; `reason` is an exception's own text."""
        return cls(
            f"model.path: whether a model whose config.json has model_type {described.get('model_type')!r} is computed"
            f" right could not be shown now: {reason.rstrip('.')}. Try again when that"
            " is mended."
        )


def needs_proof(described: Mapping[str, Any]) -> bool:
    """Whether nothing is known of the model: its family is not in the table, nor is it refused for what it is."""
    return described.get("model_type") not in FAMILIES and family_problem(described) is None


def retained_proof(described: Mapping[str, Any]) -> FamilyProof | None:
    """An earlier proof of this config with these versions."""
    try:
        return FamilyProof(**json.loads(_file(described).read_bytes()))
    except (OSError, ValueError, TypeError, RuntimeError):
        return None


def keep_proof(described: Mapping[str, Any], proof: FamilyProof) -> None:
    """Writes it, whole or not at all. A folder that cannot be written costs the seconds again, and nothing else.

    Nor does a user without a home, as in a pod of an arbitrary uid.
    """
    try:
        file = _file(described)
        beside = file.with_name(f".{file.name}.{os.getpid()}")
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(asdict(proof)))
        beside.replace(file)
    except (OSError, RuntimeError):
        return


def _file(described: Mapping[str, Any]) -> Path:
    model = {name: value for name, value in described.items() if name not in _NOT_OF_THE_MODEL}
    of_what = json.dumps([model, _versions()], sort_keys=True, default=str)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "rljob" / "families" / f"{hashlib.sha256(of_what.encode()).hexdigest()[:32]}.json"


def _versions() -> list[str]:
    """Versions of the packages and the trainer's own source, which an editable install changes without a version."""
    found = []
    for package in _PACKAGES:
        try:
            found.append(version(package))
        except PackageNotFoundError:
            found.append("")
    return [*found, _source_digest()]


def _source_digest() -> str:
    spec = find_spec("rljob_workers")
    digest = hashlib.sha256()
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for path in sorted(Path(folder, "trainers", "fsdp").glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
