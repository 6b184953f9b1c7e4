"""Paths of a manifest that the file system refuses, or that are of another kind than their field: a finding for each.

Asked before anything opens or resolves them, since a loop of links, a folder that may not be entered, a pipe would end
the command, or hold it for ever. What is not there at all is left to the check of its field, which knows a cure; a
template has no other check.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rljob_api.base import ApiModel
from rljob_api.manifest import job_of
from rljob_api.model_files.hub_names import is_hub_name
from rljob_api.rule import WITHOUT_RULES
from rljob_api.spec import RLJob
from rljob_api.text_encoding import decoded
from rljob_cli.checks.findings import Finding, problem, unchecked

_NOWHERE = "nothing-is-here"
"""Stands where a path is refused, so that the other fields are checked in the same pass."""


class PathKind(Enum):
    """Kind of file or folder that a field wants at its path."""

    FOLDER = "a folder"
    FILE = "a file"
    ROWS = "a file or folder of rows"
    ANY = "a path"
    """Made by the job, or looked up among programs: its text alone is judged."""


KINDS = {
    "path": PathKind.FOLDER,
    "tokenizer_path": PathKind.FOLDER,
    "model_path": PathKind.FOLDER,
    "prompts": PathKind.ROWS,
    "file": PathKind.FILE,
    "python": PathKind.ANY,
}
"""Fields of paths by their names, wherever they stand; names of the hub are no paths."""

_MADE = ("spec", "checkpoint", "path")


@dataclass(frozen=True, slots=True)
class NamedPath:
    """A path that a field names."""

    place: tuple[str | int, ...]
    """As in the manifest: ("spec", "data", "sources", 0, "prompts")."""
    text: str
    kind: PathKind

    @property
    def field(self) -> str:
        """As sentences have it."""
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.place).lstrip(".")


def named_paths(model: ApiModel, place: tuple[str | int, ...] = ()) -> Iterator[NamedPath]:
    """All that a job names."""
    for name, info in type(model).model_fields.items():
        here, value = (*place, info.alias or name), getattr(model, name)
        if isinstance(value, str) and name in KINDS and not is_hub_name(value):
            yield NamedPath(here, value, PathKind.ANY if here == _MADE else KINDS[name])
        parts: Sequence[object] = value if isinstance(value, list) else ()
        for step, inner in [((), value), *(((index,), part) for index, part in enumerate(parts))]:
            if isinstance(inner, ApiModel):
                yield from named_paths(inner, (*here, *step))


def path_findings(job: RLJob, folder: Path, *, is_elsewhere: bool) -> dict[tuple[str | int, ...], Finding]:
    """Paths by the place of their field. `folder` is where the manifest lies."""
    found = {}
    for named in named_paths(job):
        wrong = _text_problem(named.text)
        if wrong is not None:
            found[named.place] = problem(f"{named.field}: {named.text!r:.80} {wrong}")
        elif named.kind is not PathKind.ANY and (refusal := _refusal(named, folder)) is not None:
            found[named.place] = (unchecked if is_elsewhere else problem)(f"{named.field}: {refusal}")
    return found


def with_nothing_at(job: RLJob, places: Iterable[tuple[str | int, ...]]) -> RLJob:
    """The job with paths that name nothing there."""
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for place in places:
        node = document
        for step in place[:-1]:
            node = node[step]  # type: ignore[index] # a place of the job's own
        node[place[-1]] = _NOWHERE  # type: ignore[index] # as above
    return job_of(document, WITHOUT_RULES)


def _text_problem(text: str) -> str | None:
    if "\0" in text:
        return "has a NUL in it, which no path has. Correct it."
    try:
        os.fsencode(text)
        Path(text).expanduser()
    except UnicodeEncodeError:
        return "has half of a character in it, which no path has. Correct it."
    except RuntimeError:
        return f"begins with the home of a user who is not known here. Write it out, or as ./{text} for a folder."
    return None


def _refusal(named: NamedPath, folder: Path) -> str | None:
    path = folder / Path(named.text).expanduser()
    try:
        is_pattern = named.kind is PathKind.ROWS and "*" in path.name and not os.path.lexists(path)
        if is_pattern:
            os.scandir(path.parent).close()  # which glob would leave out where it is refused
        found = sorted(path.parent.glob(path.name)) if is_pattern else [path]
        return next((wrong for one in found if (wrong := _refusal_at(one, named.kind)) is not None), None)
    except FileNotFoundError as error:
        return _unreadable(path, named.kind, error) if named.kind is PathKind.FILE else None
    except OSError as error:
        return _unreadable(error.filename or path, named.kind, error)


def _unreadable(path: Path | str, kind: PathKind, error: OSError) -> str:
    return f"{path} cannot be read ({error.strerror}). Give {kind.value} that can."


def _refusal_at(path: Path, kind: PathKind) -> str | None:
    """Raises OSError where the file system refuses the path."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        if kind is PathKind.FILE:
            return f"{path} is a folder. Give a file."
        os.scandir(path).close()
        return None
    if not stat.S_ISREG(mode):
        return f"{path} is no file but a pipe, a socket or a device. Give {kind.value}."
    if kind is PathKind.ROWS:
        path.open("rb").close()
    if kind is PathKind.FILE:
        return _encoding_problem(path)
    return None


def _encoding_problem(path: Path) -> str | None:
    try:
        decoded(path.read_bytes())
    except ValueError as error:
        return f"{path} {error}"
    return None
