"""Functions that users bring by import path: found, imported and checked, with a sentence for everything that is wrong.

For rewards, rollout functions and algorithms. Loads from installed packages and from a folder that the job names, never
from data. Imports nothing of ours but how an error names its place.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_workers.rewards.base import user_place, user_traceback

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function must take."""

    num_arguments: int
    """By position."""
    arguments: str
    """What they are."""
    example: str
    """How it may be written."""


def load(field: str, name: str, path_field: str, path: str | None, wanted: Signature) -> Any:  # noqa: ANN401 - a user's
    """The function `name` (`package.module:function`) of `field`, whose module may lie in `path` of `path_field`.

    Raises ValueError with a sentence: no folder, no module, a module that fails, no such name, not a function of as
    many arguments.
    """
    module_name, _, attribute = name.partition(":")
    if path is not None:
        _search_first(path_field, Path(path), module_name)
    module = _import(field, path_field, name, module_name, path)
    function = getattr(module, attribute, None)
    if function is None:
        raise ValueError(
            f"{field}: {name} was not found: module {module_name} ({_origin(module)}) has no {attribute!r}. Define it"
            " there or correct the name."
        )
    if not callable(function) or not _takes(function, wanted.num_arguments):
        count = "one argument" if wanted.num_arguments == 1 else f"{wanted.num_arguments} arguments"
        raise ValueError(
            f"{field}: {name} cannot be called with {count} ({wanted.arguments}). Write it as `{wanted.example}`."
        )
    return function


def _import(field: str, path_field: str, name: str, module_name: str, path: str | None) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            where = f"in {path} or the installed packages" if path else "in the installed packages"
            raise ValueError(
                f"{field}: module {module_name} of {name} was not found {where}. Correct the name or set {path_field}"
                " to its folder."
            ) from error
        raise ValueError(f"{field}: module {module_name} needs {error.name}, which is not installed.") from error
    except Exception as error:  # a user's module may raise anything while it is imported
        failed = ValueError(
            f"{field}: module {module_name} failed while it was imported{user_place(error)}: {type(error).__name__}:"
            f" {error}"
        )
        failed.add_note(user_traceback(error))
        raise failed from error


def _search_first(field: str, folder: Path, module_name: str) -> None:
    """Puts `folder` first on the search path, where it stays: the module may import its neighbours later."""
    if not folder.is_dir():
        raise ValueError(f"{field}: {folder} is not a folder. Relative paths are relative to the manifest.")
    entry = str(folder.resolve())
    if entry in sys.path:
        sys.path.remove(entry)
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    _refuse_taken_name(field, entry, module_name.partition(".")[0])


def _refuse_taken_name(field: str, entry: str, top: str) -> None:
    """A module that is already imported would silently win over the user's file of the same name."""
    found, loaded = PathFinder.find_spec(top, [entry]), sys.modules.get(top)
    if found is None or loaded is None or found.origin == getattr(loaded, "__file__", None):
        return
    raise ValueError(
        f"{field}: {entry} has a module {top!r}, but another {top!r} ({_origin(loaded)}) is already in use."
        " Rename the file."
    )


def _origin(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "built in"


def _takes(function: object, count: int) -> bool:
    assert callable(function)
    try:
        inspect.signature(function).bind(*[()] * count)
    except TypeError:
        return False
    except ValueError:  # some built-in functions have no signature
        return True
    return True
