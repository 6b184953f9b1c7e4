"""Inputs that the first rank of a role reads from outside of the run, and its report of them to the coordinator.

Called by each role while it loads, before it works. A file is read again only where its size or its times are not those
that the coordinator knows; of a large one parts are read, so that 100 GB of weights take less than a second, and of
every one where there are too many for the disk to read them all.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from rljob_api.roles import LEADING_ROLE, REFERENCE_ROLE, TICKET_ROLE, VALUE_ROLE
from rljob_api.row_files.tables import PARQUET_MAGIC
from rljob_api.spec.roles import ChangedWeights
from rljob_api.spec.set_defaults import stated_data
from rljob_api.wire.inputs import FileContent, InputNote

if TYPE_CHECKING:
    from rljob_api.names import Role
    from rljob_api.spec import RLJobSpec
    from rljob_workers.rank_loop import RankParts

_log = logging.getLogger(__name__)


WHOLE_BYTES = 16 << 20
"""A file up to here is read whole."""


ALL_WHOLE_BYTES = 1 << 30
"""Files of an input which have more together are read in parts, each as a larger one is."""


BLOCKS, BLOCK_BYTES = 32, 64 << 10
"""Parts of a larger file that count, at even distances from its first byte to its last: another training of a model
changes all of them, and so does an edit that moves what comes after it. Their digest is taken of every file that has
more, also of one that is read whole: the next start may read parts of it."""


_TOKENIZER_FILES = frozenset(
    {
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "merges.txt",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
        "vocab.txt",
    }
)


_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt")


class Kind(Enum):
    """The kind of files that are meant below a path."""

    ROWS = "rows"
    FILE = "file"
    TOKENIZER = "tokenizer"
    MODEL = "model"
    CODE = "code"
    """Modules that are imported of a folder, or a module that lies elsewhere."""


@dataclass(frozen=True, slots=True)
class Input:
    """A path that a role reads for a field."""

    field: str
    """Below `spec`."""
    path: str
    kind: Kind
    may_change: bool = True
    modules: tuple[str, ...] = ()
    """Modules that fields name, of code."""


def inputs_of(spec: RLJobSpec, role: Role) -> list[Input]:
    """All of a role's; code that it does not import has no files."""
    found = list(_code(spec))
    if role is TICKET_ROLE:
        found += _texts(spec)
    elif role is LEADING_ROLE and spec.model.path is not None:
        found.append(Input("model.path", spec.model.path, Kind.MODEL))
    elif role is VALUE_ROLE and spec.roles.critic is not None and spec.roles.critic.model_path is not None:
        found.append(Input("roles.critic.modelPath", spec.roles.critic.model_path, Kind.MODEL))
    elif role is REFERENCE_ROLE and spec.roles.reference is not None and spec.roles.reference.model_path is not None:
        accepts = spec.roles.reference.changed_weights is ChangedWeights.ACCEPT
        found.append(Input("roles.reference.modelPath", spec.roles.reference.model_path, Kind.MODEL, accepts))
    return found


def _texts(spec: RLJobSpec) -> Iterator[Input]:
    """Prompts, labels, templates and tokenizer."""
    sets = () if spec.evaluation is None else spec.evaluation.sets
    for where, data in (
        ("", spec.data),
        *((f"evaluation.sets[{place}].", stated_data(each.data)) for place, each in enumerate(sets)),
    ):
        yield from (Input(f"{where}{file.field}", file.path, Kind.ROWS) for file in data.files)
        if data.chat_template is not None and data.chat_template.file is not None:
            yield Input(f"{where}data.chatTemplate.file", data.chat_template.file, Kind.FILE)
    if spec.model.tokenizer_path is not None:
        yield Input("model.tokenizerPath", spec.model.tokenizer_path, Kind.TOKENIZER)
    elif spec.model.path is not None:
        yield Input("model.path (its tokenizer)", spec.model.path, Kind.TOKENIZER)


def _code(spec: RLJobSpec) -> Iterator[Input]:
    """Users' functions, together where they lie in one folder."""
    rollout, algorithm = spec.rollout, spec.algorithm
    named: list[tuple[str, str | None, str | None]] = [
        *((f"{field}.function", each.function, each.path) for field, each in rollout.reward.functions.items())
    ]
    if rollout.function is not None:
        named.append(("rollout.function.function", rollout.function.function, rollout.function.path))
    if rollout.dynamic_sampling is not None:
        named.append(("rollout.dynamicSampling.filter", rollout.dynamic_sampling.filter, rollout.dynamic_sampling.path))
    if rollout.curriculum is not None:
        named.append(("rollout.curriculum.function", rollout.curriculum.function, rollout.curriculum.path))
    named += [
        (f"algorithm.{field}", str(name), algorithm.path)
        for field, name in (
            ("advantage", algorithm.advantage),
            ("correction.kind", algorithm.correction.kind),
            ("loss", algorithm.loss),
            ("lossAggregation", algorithm.loss_aggregation),
            ("sampleFilter", algorithm.sample_filter),
        )
    ]
    folders: dict[str, list[tuple[str, str]]] = {}
    for field, function, path in named:
        module, colon, _ = (function or "").partition(":")
        if colon:
            folders.setdefault(path or module, []).append((field, module))
    for path, functions in folders.items():
        fields = " and ".join(f"spec.{field}" for field, _ in functions).removeprefix("spec.")
        yield Input(fields, path, Kind.CODE, modules=tuple(module for _, module in functions))


def files_of(given: Input) -> dict[str, Path]:
    """The files that are there, by name below the path."""
    path = Path(given.path)
    match given.kind:
        case Kind.CODE:
            return _imported(given)
        case Kind.TOKENIZER:
            files: Iterable[Path] = (path / name for name in sorted(_TOKENIZER_FILES))
        case Kind.MODEL:
            files = (file for file in _listed(path) if _is_of_model(file))
        case Kind.ROWS if path.is_dir():
            files = _listed(path)
        case Kind.ROWS if not path.exists():
            files = sorted(path.parent.glob(path.name)) if path.parent.is_dir() else ()
        case _:
            files = (path,)
    return {file.name: file for file in files if file.is_file()}


def _is_of_model(file: Path) -> bool:
    return file.suffix in _WEIGHT_SUFFIXES or file.name in ("config.json", "generation_config.json")


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _imported(given: Input) -> dict[str, Path]:
    """Files of the modules that were named, and of those beside them that they import."""
    folder = Path(given.path).absolute()
    below = tuple(f"{each}/" for each in {folder, folder.resolve()})
    found = {}
    for name, module in sorted(sys.modules.items()):
        # Not an attribute: some modules import others when one is asked for.
        file = str(getattr(module, "__dict__", {}).get("__file__") or "")
        if name in given.modules or (file.startswith(below) and not _is_installed(name, file)):
            prefix = next((each for each in below if file.startswith(each)), f"{Path(file).parent}/")
            found[file.removeprefix(prefix)] = Path(file)
    return {name: file for name, file in found.items() if file.is_file()}


def _is_installed(module: str, file: str) -> bool:
    """Packages may lie below the folder, too, and ourselves."""
    return module.startswith("rljob") or "/site-packages/" in file or "/dist-packages/" in file


def stamp_of(files: dict[str, Path]) -> str:
    """A digest of names, sizes and times."""
    digest = xxhash.xxh3_128()
    for name, file in files.items():
        found = file.stat()
        digest.update(f"{name}/{found.st_size}/{found.st_mtime_ns}/{found.st_ctime_ns}/{found.st_ino}\n".encode())
    return digest.hexdigest()


def contents_of(files: dict[str, Path], *, has_rows: bool) -> dict[str, FileContent]:
    """Content of the files of an input, by their names."""
    whole_bytes = WHOLE_BYTES if _size_of(files.values()) <= ALL_WHOLE_BYTES else BLOCKS * BLOCK_BYTES
    return {name: content_of(file, whole_bytes, has_rows=has_rows) for name, file in files.items()}


def _size_of(files: Iterable[Path]) -> int:
    return sum(size for size in (file.stat().st_size for file in files) if size <= WHOLE_BYTES)


def content_of(file: Path, whole_bytes: int = WHOLE_BYTES, *, has_rows: bool) -> FileContent:
    """Size, digest and rows of a file, which is read in parts where it has more than `whole_bytes`."""
    size, is_table = file.stat().st_size, has_rows and _is_table(file)
    rows = _table_rows(file) if is_table else None
    parts = _digest_of_parts(file, size) if size > BLOCKS * BLOCK_BYTES else None
    if parts is not None and size > whole_bytes:
        return FileContent(num_bytes=size, digest=parts, parts=parts, rows=rows)
    data = file.read_bytes()
    if has_rows and not is_table and file.suffix != ".json":
        rows = sum(1 for line in data.splitlines() if line.strip())
    return FileContent(num_bytes=size, digest=xxhash.xxh3_128_hexdigest(data), parts=parts, rows=rows)


def _digest_of_parts(file: Path, size: int) -> str:
    digest = xxhash.xxh3_128()
    with file.open("rb", buffering=0) as content:
        for number in range(BLOCKS):
            content.seek((size - BLOCK_BYTES) * number // (BLOCKS - 1))
            digest.update(content.read(BLOCK_BYTES))
    return digest.hexdigest()


def _is_table(file: Path) -> bool:
    with file.open("rb") as content:
        return content.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC


def _table_rows(file: Path) -> int | None:
    """Rows of a Parquet file, as its end has them; None of a damaged one, which what reads its rows names."""
    from pyarrow import ArrowException, parquet

    try:
        return int(parquet.read_metadata(file).num_rows)
    except ArrowException:
        return None


def report_inputs(rank: RankParts) -> None:
    """Reports what this rank's role reads, where it is the role's first. ValueError: the job cannot go on with it."""
    if rank.context.global_rank != 0:
        return
    try:
        refusal = _report(rank)
    except OSError as error:  # what reads a file for its work says what is wrong with it
        _log.warning("what this rank reads cannot be looked at: %s", error)
        return
    if refusal is not None:
        raise ValueError(refusal)


def _report(rank: RankParts) -> str | None:
    inputs = {f"spec.{each.field}": each for each in inputs_of(rank.spec, rank.context.incarnation.key.role)}
    files = {field: files_of(each) for field, each in inputs.items()}
    notes = [
        InputNote(field=field, path=each.path, stamp=stamp_of(files[field]), may_change=each.may_change)
        for field, each in inputs.items()
        if files[field]
    ]
    if not notes:
        return None
    answer = rank.session.report_inputs(notes)
    read = [
        note.model_copy(update={"files": contents_of(files[note.field], has_rows=inputs[note.field].kind is Kind.ROWS)})
        for note in notes
        if note.field in answer.wanted
    ]
    return rank.session.report_inputs(read).refusal if read else None
