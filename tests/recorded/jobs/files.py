"""Facts of a run folder: files by their relative paths, keys and types of JSON, names, shapes and types of tensors.

Of a model's description, which is the same in every run, the values too. Ids and numbers in names become their kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open

from tests.recorded.jobs.types import types_of

_NAMES = (
    (re.compile(r"[0-9a-f]{12}"), "ID"),
    (re.compile(r"^\d+-e\d+"), "#-e#"),
    (re.compile(r"\.aof\.\d+"), ".aof.#"),
)

_DESCRIBED = re.compile(r"(config|generation_config|tokenizer|tokenizer_config)\.json")

_VERSIONED = ("transformers_version",)
"""Fields of a description that another release of a library changes."""


def facts(folder: Path) -> set[str]:
    """All of them, each a line."""
    return {
        f"{_named(path.relative_to(folder))} {fact}".rstrip() for path in _files(folder) for fact in _facts_of(path)
    }


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        else:
            yield path


def _named(path: Path) -> str:
    parts = []
    for part in path.parts:
        for pattern, kind in _NAMES:
            part = pattern.sub(kind, part)
        parts.append(part)
    return "/".join(parts)


def _facts_of(path: Path) -> Iterator[str]:
    if path.is_symlink():
        yield f"-> {_named(Path(path.readlink().name))}"
    elif path.suffix == ".safetensors":
        yield from _tensors(path)
    elif _DESCRIBED.fullmatch(path.name):
        yield from _values("", json.loads(path.read_bytes()))
    elif path.suffix == ".json":
        yield from types_of(json.loads(path.read_bytes()))
    elif path.suffix == ".jsonl":
        for line in path.read_text().splitlines():
            yield from types_of(json.loads(line))
    else:
        yield ""


def _tensors(path: Path) -> Iterator[str]:
    with safe_open(path, framework="numpy") as file:
        yield from (f"metadata {name}" for name in file.metadata() or {})
        for name in file.keys():  # noqa: SIM118 - no mapping
            part = file.get_slice(name)
            yield f"{name} {part.get_dtype()} {part.get_shape()}"


def _values(path: str, value: object) -> Iterator[str]:
    match value:
        case dict() if value:
            for key, each in value.items():
                if key not in _VERSIONED:
                    yield from _values(f"{path}.{key}" if path else key, each)
        case _:
            yield f"{path} = {json.dumps(value)}"
