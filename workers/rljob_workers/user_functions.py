"""Functions that users bring by import path: found, imported and checked, with a sentence for everything that is wrong.

For rewards, rollout functions and algorithms. Loads from installed packages and from a folder that the job names, never
from data.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import threading
import traceback
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rljob_workers.user_cures import with_cure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType, TracebackType


_OURS = "rljob_workers."


_LOGGED_PLACES = 20
"""Of which tracebacks are logged: one for each failure is no use to its reader."""


def user_place(error: BaseException) -> str:
    """File and line in the user's code that raised, as ` (FILE, line N)`; empty where there is none.

    Of its frames the innermost that is no library's.
    """
    frames = [(frame.tb_frame.f_code.co_filename, frame.tb_lineno) for frame in _users(error)]
    return _innermost(frames, frames[:1])


def thread_place(thread: int | None) -> str:
    """File and line in the user's code that a thread is in now, as `user_place` has them."""
    frame = None if thread is None else sys._current_frames().get(thread)
    stack = [
        (each.f_code.co_filename, line)
        for each, line in traceback.walk_stack(frame)
        if not str(each.f_globals.get("__name__", "")).startswith(_OURS)
    ]
    return _innermost(stack[::-1], []) if frame is not None else ""


def _innermost(frames: Sequence[tuple[str, int]], otherwise: Sequence[tuple[str, int]]) -> str:
    own = [frame for frame in frames if "site-packages" not in frame[0] and not frame[0].startswith("<")]
    library = traceback.__file__.rpartition("/")[0]
    found = [frame for frame in own if not frame[0].startswith(f"{library}/")] or otherwise
    return f" ({found[-1][0]}, line {found[-1][1]})" if found else ""


def user_traceback(error: BaseException) -> str:
    """The traceback of what a user's code raised, from where our code called it."""
    first = next(_users(error), None)
    return "".join(traceback.format_exception(type(error), error, first)).rstrip()


def _users(error: BaseException) -> Iterator[TracebackType]:
    """The frames below our call and below the machinery of imports."""
    trace, is_below = error.__traceback__, False
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        is_below = is_below or not name.startswith((_OURS, "importlib", "_frozen_importlib"))
        if is_below:
            yield trace
        trace = trace.tb_next


def final(sentence: str, cause: BaseException | None) -> ValueError:
    """What ends the job with `sentence`; the traceback of what the user's code raised goes with it into the log."""
    error = ValueError(sentence)
    if cause is not None:
        error.add_note(user_traceback(cause))
    return error


def is_async(function: object) -> bool:
    """Whether a call of it gives something to wait for; also of an object whose call is async."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - not whether it can be called


class FailureLog:
    """What failures of a user's code are logged: the first and then ever fewer, and a traceback for each place.

    Threads may share one.
    """

    def __init__(self, log: logging.Logger, what: str) -> None:
        """`what` raised, as a sentence begins."""
        self._log = log
        self._what = what
        self._lock = threading.Lock()
        self._places: set[str] = set()

    def add(self, number: int, sentence: str, cause: BaseException | None) -> None:
        """The `number`-th failure in all, described by `sentence`."""
        if number & (number - 1) == 0:
            self._log.warning(sentence)
        if cause is None:
            return
        place = f"{type(cause).__name__}{user_place(cause)}"
        with self._lock:
            if place in self._places or len(self._places) >= _LOGGED_PLACES:
                return
            self._places.add(place)
        self._log.warning("%s raised:\n%s", self._what, user_traceback(cause))


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function must take."""

    num_arguments: int
    """By position."""
    arguments: str
    """What they are."""
    example: str
    """How it may be written."""
    keywords: tuple[str, ...] = ()
    """Arguments that it is given by name."""
    or_keyword: str | None = None
    """An argument by which a function is taken that is called by names alone."""


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
    if not callable(function) or not _takes(function, wanted):
        count = "one argument" if wanted.num_arguments == 1 else f"{wanted.num_arguments} arguments"
        raise ValueError(
            f"{field}: {name} cannot be called with {count} ({wanted.arguments}). Write it as `{wanted.example}`."
        )
    return function


def load_called(field: str, name: str, path_field: str, path: str | None, wanted: Signature, is_called: str) -> Any:  # noqa: ANN401
    """As `load`, of a function that is called and not awaited, as `is_called` states of it."""
    function = load(field, name, path_field, path, wanted)
    if is_async(function):
        raise ValueError(f"{field}: {name} is async, and {is_called}. Write it as `{wanted.example}`.")
    return function


@dataclass(frozen=True, slots=True)
class FinalCalls:
    """Calls of a user's function for which another try would not help: what is wrong with one ends the job."""

    where: str
    """The field, and the function's import path."""
    function: Any

    def answer(self, on: str, *arguments: object) -> Any:  # noqa: ANN401 - what a user returns
        """What it returns. ValueError, with its place in the user's code, for whatever it raises on `on`."""
        try:
            return self.function(*arguments)
        except Exception as error:  # a user's function may raise anything
            sentence = f"{self.where} raised {type(error).__name__} on {on}{user_place(error)}: {with_cure(error)}"
            raise final(sentence, error) from error

    def verdict(self, on: str, cure: str, *arguments: object) -> bool:
        """As `answer`, of a filter: ValueError, with `cure`, for a result that is no bool."""
        found = self.answer(on, *arguments)
        if not isinstance(found, bool | np.bool_):
            raise ValueError(f"{self.where} returned {found!r:.200} for {on}. {cure}")
        return bool(found)


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
        sentence = f"{field}: module {module_name} failed while it was imported{user_place(error)}"
        raise final(f"{sentence}: {type(error).__name__}: {error}", error) from error


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


def _takes(function: object, wanted: Signature) -> bool:
    assert callable(function)
    try:
        if wanted.or_keyword is not None and wanted.or_keyword in inspect.signature(function).parameters:
            return True
        inspect.signature(function).bind(*[()] * wanted.num_arguments, **dict.fromkeys(wanted.keywords))
    except TypeError:
        return False
    except ValueError:  # some built-in functions have no signature
        return True
    return True
