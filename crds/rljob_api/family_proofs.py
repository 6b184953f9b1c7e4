"""What is known of models of other families than those of the table: proofs, kept by config and versions.

A proof takes seconds of a process with torch (`rljob_workers.trainers.fsdp.proof`); what came out is kept in the user's
cache folder, so that the command line, which has no torch, reads it at once. Imports nothing heavy.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rljob_api.families import FAMILIES, family_problem

EXIT_NOT_PROVEN = 75
"""Of the process that makes a proof, as sysexits.h calls what may be tried again."""
_PACKAGES = ("rljob", "torch", "transformers")
_NOT_OF_THE_MODEL = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")


@dataclass(frozen=True, slots=True)
class FamilyProof:
    """Of each layout of rows: None where a small twin came out right, else what did not."""

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


def kept_proof(described: Mapping[str, Any]) -> FamilyProof | None:
    """What was found before, of this config with these versions."""
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
    """Of the packages, and of the trainer's own source, which an editable install changes without a version."""
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
