"""Whether a folder that a manifest names for a model is one, and which was probably meant where it is none.

For the checks of models: the policy's, the tokenizer's, a critic's, a teacher's. Looks at names of files alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rljob_api.cluster import LATEST
from rljob_api.model_files.hub_names import PREFIX, is_hub_name
from rljob_api.other_names.absent import absent_sentence
from rljob_cli.checks.findings import Finding, problem, unchecked

_PART_OF_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_FOLDERS = frozenset(("checkpoint", "checkpoints", "data", "dataset", "datasets", "model", "models", "out", "weights"))
"""Names that people give to folders; no owner on the hub is meant."""
_CACHED = re.compile(r"models--(?P<owner>.+?)--(?P<name>.+)")


def folder_finding(field: str, path: str, cure: str, *, is_elsewhere: bool) -> Finding | None:
    """Finding on a field that names a folder which is not here, or another than was meant; None where it will do."""
    folder = Path(path)
    if folder.is_dir():
        meant = _meant(folder)
        return None if meant is None else problem(f"{field}: {folder} {meant}")
    if is_elsewhere:
        return unchecked(f"{field}: {path} is not on this machine, so that nothing of it was looked at.")
    return problem(f"{field}: {path} is not a folder. {cure}{hub_hint(folder)}")


def refused_model_findings(document: Mapping[str, Any], folder: Path, *, is_elsewhere: bool) -> Iterator[Finding]:
    """Findings on a `model.path` that a `model.config` beside it refuses, so that no other check looks at it."""
    spec = document.get("spec")
    model = spec.get("model") if isinstance(spec, dict) else None
    path = model.get("path") if isinstance(model, dict) else None
    if model is None or model.get("config") is None or not isinstance(path, str) or is_hub_name(path):
        return
    place, cure = os.path.realpath(folder / os.path.expanduser(path)), "Give the folder of a Hugging Face checkpoint."  # noqa: PTH111 - as `resolve_paths`
    try:
        found = folder_finding("spec.model.path", place, cure, is_elsewhere=is_elsewhere)
    except OSError as error:  # a folder may not be entered
        found = problem(f"spec.model.path: {place} cannot be read ({error.strerror}). {cure}")
    if found is not None:
        yield found


def hub_hint(path: Path, inner: str = "") -> str:
    """A sentence, with a space before it, where the path ends as a name of the hub does; `inner`: what to add to it."""
    owner, name = path.parent, path.name
    parts = (owner.name, name)
    if owner.name.lower() in _FOLDERS:
        return ""
    is_near = owner.parent.is_dir() and owner.parent != owner.parent.parent and not owner.exists()
    if not is_near or not all(map(_PART_OF_HUB_NAME.fullmatch, parts)):
        return ""
    return f" If it is {'/'.join(parts)} of the Hugging Face hub, give {PREFIX}{'/'.join(parts)}{inner}."


def _meant(folder: Path) -> str | None:
    """A predicate with its cure where the folder is none of a model, but of something that has one."""
    if (folder / "config.json").exists():
        return None
    for place in (folder / "checkpoints", folder):
        if (place / LATEST).is_dir():
            what = "is the folder of a run" if place != folder else "holds the checkpoints of a run"
            return f"{what}. Give its last checkpoint: {place / LATEST}."
    if (folder / "run.json").is_file():
        return "is the folder of a run that has saved no checkpoint. Give the folder of a model."
    if (folder / "adapter_config.json").is_file():
        return f"holds an adapter and no model. {absent_sentence('lora')}"
    if (cached := _CACHED.fullmatch(folder.name)) and (folder / "snapshots").is_dir():
        name = f"{PREFIX}{cached['owner']}/{cached['name']}"
        return f"is where the cache of huggingface_hub has all revisions of a model. Give {name}."
    return None
