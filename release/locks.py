"""Reads locks as `uv pip compile` writes them: versions, hashes, where a package is installed, what asked for it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ENTRY = re.compile(
    r"^(?P<name>[a-z0-9._-]+)==(?P<version>[^ ;\\\n]+)(?: ; (?P<marker>[^\\\n]+?))?(?: \\)?\n(?P<rest>(?: .*\n)*)", re.M
)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_VIA = re.compile(r"# +(?:via +)?([A-Za-z0-9._-]+)(?:\[[^]]*\])?$", re.M)
NOT_RUN = ("bench", "dev", "sglang")
"""Extras of a source tree and of another environment: an installed wheel runs without them."""


@dataclass(frozen=True, slots=True)
class Locked:
    """A package of a lock."""

    name: str
    version: str
    hashes: frozenset[str]
    """SHA-256 of each of its files in an index, of which an installation takes one."""
    marker: str | None
    """Where it is installed; None: everywhere."""
    asked_by: frozenset[str]
    """Packages that need it, where the lock says so."""


def read_lock(path: Path) -> list[Locked]:
    """In the lock's order."""
    return [
        Locked(
            name=found["name"],
            version=found["version"],
            hashes=frozenset(_HASH.findall(found["rest"])),
            marker=found["marker"],
            asked_by=frozenset(name for name in _VIA.findall(found["rest"]) if name != "via"),
        )
        for found in _ENTRY.finditer(path.read_text())
    ]


def in_images(packages: Iterable[Locked]) -> list[Locked]:
    """Those that Linux on x86-64 gets with Python 3.11, of which the earliest needs most."""
    there = {
        "implementation_name": "cpython",
        "implementation_version": "3.11.0",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": "3.11.0",
        "python_version": "3.11",
        "sys_platform": "linux",
    }
    return [each for each in packages if each.marker is None or Marker(each.marker).evaluate(there)]


def needed_by_wheel(packages: Iterable[Locked], pyproject: Path) -> list[Locked]:
    """What the wheel needs with all of its extras that run anything, by what the lock says of who asked for what."""
    project = tomllib.loads(pyproject.read_text())["project"]
    extras: Mapping[str, list[str]] = project["optional-dependencies"]
    asked = [
        *project["dependencies"],
        *(line for extra, lines in extras.items() if extra not in NOT_RUN for line in lines),
    ]
    needed = {canonicalize_name(Requirement(line).name) for line in asked}
    found: dict[str, Locked] = {}
    everything = list(packages)
    while more := [
        each for each in everything if each.name not in found and (each.name in needed or each.asked_by & found.keys())
    ]:
        found.update((each.name, each) for each in more)
    return [each for each in everything if each.name in found]
