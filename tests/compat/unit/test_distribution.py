"""The adapter is released with the rljob whose inner modules it uses."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def project(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(file.read_text())["project"]
    return found


def test_the_adapter_and_rljob_have_one_version() -> None:
    version = project(ROOT / "pyproject.toml")["version"]
    adapter = project(ROOT / "compat/pyproject.toml")
    assert adapter["version"] == version
    assert f"rljob[worker]=={version}" in adapter["dependencies"]
