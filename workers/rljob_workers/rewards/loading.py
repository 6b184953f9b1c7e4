"""Finding a user's reward function by its import path. Imports no torch, so that a manifest may be checked with it.

Code is loaded from installed packages and from the folder that the manifest names, never from data.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_workers.rewards.errors import place_of, traceback_of

if TYPE_CHECKING:
    from types import ModuleType

    from rljob_api.spec import RewardFunctionSpec
    from rljob_workers.rewards.base import RewardFunction

_FIELD = "rollout.reward.custom"


def load_function(spec: RewardFunctionSpec) -> RewardFunction:
    """The function that `spec` names.

    Raises ValueError with a sentence: no folder, no module, a module that fails, no such name, not a function of one
    argument.
    """
    module_name, _, attribute = spec.function.partition(":")
    module = _load_module(module_name, spec)
    function = getattr(module, attribute, None)
    if function is None:
        raise ValueError(
            f"{_FIELD}.function: {spec.function} was not found: module {module_name} ({_origin(module)}) has no"
            f" {attribute!r}. Define it there or correct the name."
        )
    if not callable(function) or not _takes_one_argument(function):
        raise ValueError(
            f"{_FIELD}.function: {spec.function} cannot be called with one argument (the answers of one group)."
            " Write it as `def reward(answers): return [...]`."
        )
    return function  # type: ignore[no-any-return]  # a name in a user's module has no type


def _load_module(name: str, spec: RewardFunctionSpec) -> ModuleType:
    if spec.path is not None:
        _search_first(Path(spec.path), name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            where = f"in {spec.path} or the installed packages" if spec.path else "in the installed packages"
            raise ValueError(
                f"{_FIELD}.function: module {name} of {spec.function} was not found {where}."
                f" Correct the name or set {_FIELD}.path to its folder."
            ) from error
        raise ValueError(f"{_FIELD}.function: module {name} needs {error.name}, which is not installed.") from error
    except Exception as error:  # a user's module may raise anything while it is imported
        failed = ValueError(
            f"{_FIELD}.function: module {name} failed while it was imported{place_of(error)}: {type(error).__name__}:"
            f" {error}"
        )
        failed.add_note(traceback_of(error))
        raise failed from error


def _search_first(folder: Path, module_name: str) -> None:
    """Puts `folder` first on the search path, where it stays: the module may import its neighbours later."""
    if not folder.is_dir():
        raise ValueError(f"{_FIELD}.path: {folder} is not a folder. Relative paths are relative to the manifest.")
    entry = str(folder.resolve())
    if entry in sys.path:
        sys.path.remove(entry)
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    _refuse_taken_name(entry, module_name.partition(".")[0])


def _refuse_taken_name(entry: str, top: str) -> None:
    """A module that is already imported would silently win over the user's file of the same name."""
    found, loaded = PathFinder.find_spec(top, [entry]), sys.modules.get(top)
    if found is None or loaded is None or found.origin == getattr(loaded, "__file__", None):
        return
    raise ValueError(
        f"{_FIELD}.path: {entry} has a module {top!r}, but another {top!r} ({_origin(loaded)}) is already in use."
        " Rename the file."
    )


def _origin(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "built in"


def _takes_one_argument(function: object) -> bool:
    assert callable(function)
    try:
        inspect.signature(function).bind(())
    except TypeError:
        return False
    except ValueError:  # some built-in functions have no signature to look at
        return True
    return True
