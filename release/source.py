"""What is released: a tagged commit, whose files agree on their version.

All is made of the commit's own files in a folder of their own, so that nothing else in a checkout has a part in it.
"""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import yaml

CHART = "helm/rljob-operator"
_HEADING = re.compile(r"^## (.*)$", re.MULTILINE)


class Refused(ValueError):
    """There is nothing to release here, and why."""


@dataclass(frozen=True, slots=True)
class Source:
    """The files of a release."""

    folder: Path
    version: str
    commit: str
    seconds: int
    """When the commit was made, since 1970: the time of all that is made of it."""


def export(checkout: Path, folder: Path) -> Source:
    """Puts the files of the tagged commit into `folder`. Raises Refused."""
    commit = _git(checkout, "rev-parse", "HEAD").decode().strip()
    tags = _git(checkout, "tag", "--points-at", commit).decode().split()
    seconds = int(_git(checkout, "log", "-1", "--format=%ct", commit))
    with tarfile.open(fileobj=io.BytesIO(_git(checkout, "archive", "--format=tar", commit))) as archive:
        archive.extractall(folder, filter="data")
    version = agreed_version(folder)
    if f"v{version}" not in tags:
        found = ", ".join(tags) or "no tag"
        raise Refused(f"the commit {commit[:12]} has version {version} and {found}. Tag it v{version}, or correct it.")
    return Source(folder, version, commit, seconds)


def agreed_version(folder: Path) -> str:
    """That of pyproject.toml, which chart and changelog must have, too. Raises Refused."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    version = str(project["version"])
    chart = yaml.safe_load((folder / CHART / "Chart.yaml").read_text())
    for field in ("version", "appVersion"):
        if str(chart[field]) != version:
            raise Refused(
                f"{CHART}/Chart.yaml has {field} {chart[field]}, but pyproject.toml has version {version}. Make them"
                " one."
            )
    heading = _HEADING.search((folder / "CHANGELOG.md").read_text())
    first = heading[1] if heading else ""
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", first):
        raise Refused(
            f"CHANGELOG.md begins with the heading '{first}', but pyproject.toml has version {version}. Write"
            f" '## {version} (YYYY-MM-DD)'."
        )
    return version


def _git(checkout: Path, *arguments: str) -> bytes:
    ended = subprocess.run(["git", *arguments], cwd=checkout, capture_output=True, timeout=300, check=False)
    if ended.returncode != 0:
        raise Refused(f"git {arguments[0]} in {checkout} says: {ended.stderr.decode().strip()}")
    return ended.stdout
