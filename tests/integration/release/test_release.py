"""A release as `scripts/release` makes it of a tag: the same bytes twice, and bills that name each locked package.

Of this checkout's files, in a repository of their own; the images are `make test-images`' affair.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from release.packages import digest

ROOT = Path(__file__).parents[3]
VERSION = "0.3.0"
IDENTITY = ["-c", "user.name=Tester", "-c", "user.email=tester@localhost"]


def git(folder: Path, *arguments: str) -> str:
    command = ["git", *IDENTITY, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=120).stdout


def tagged(folder: Path) -> Path:
    """A repository of this checkout's files as they are, with a changelog and a tag of today."""
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, listed):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    changelog = folder / "CHANGELOG.md"
    changelog.write_text(re.sub(r"^## .*$", f"## {VERSION} (2026-11-30)", changelog.read_text(), count=1, flags=re.M))
    for command in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "-m", "All"), ("tag", f"v{VERSION}")):
        git(folder, *command)
    return folder


def released(checkout: Path, out: Path, *, umask: int, zone: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "release", "--out", str(out)],
        cwd=checkout,
        env={**os.environ, "TZ": zone},
        umask=umask,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tagged(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def dist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a release of it is."""
    out = tmp_path_factory.mktemp("dist")
    ended = released(checkout, out, umask=0o022, zone="UTC")
    assert ended.returncode == 0, ended.stderr
    return out


@pytest.mark.long
def test_another_checkout_gives_the_same_bytes(checkout: Path, dist: Path, tmp_path: Path) -> None:
    """In another folder, of another zone, with files that others may not read and one that no commit has."""
    other = tmp_path / "other"
    command = ["git", "clone", "--quiet", str(checkout), str(other)]
    subprocess.run(command, check=True, umask=0o077, timeout=120)
    (other / "helm/rljob-operator/templates/left.yaml").write_text("kind: Forgotten\n")
    (other / "cli/rljob_cli/left.py").write_text("")
    (other / "README.md").write_text("changed\n")
    ended = released(other, tmp_path / "dist", umask=0o077, zone="Asia/Tokyo")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "dist/SHA256SUMS").read_text() == (dist / "SHA256SUMS").read_text()
    check = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path / "dist", capture_output=True, timeout=60
    )
    assert check.returncode == 0, check.stdout


def test_a_release_is_wheel_sdist_chart_and_bills(checkout: Path, dist: Path) -> None:
    assert {file.name for file in dist.iterdir()} == {
        "SHA256SUMS",
        f"rljob-{VERSION}-py3-none-any.whl",
        f"rljob-{VERSION}-py3-none-any.whl.cdx.json",
        f"rljob-{VERSION}.tar.gz",
        f"rljob-operator-{VERSION}.cdx.json",
        f"rljob-operator-{VERSION}.tgz",
        f"rljob-worker-cpu-{VERSION}.cdx.json",
        f"rljob-worker-gpu-{VERSION}.cdx.json",
    }
    seconds = int(git(checkout, "log", "-1", "--format=%ct"))
    with tarfile.open(dist / f"rljob-operator-{VERSION}.tgz") as chart:
        members = chart.getmembers()
    files = git(checkout, "ls-files", "helm/rljob-operator").split()
    assert [f"helm/{member.name}" for member in members] == sorted(files)
    assert {(member.mode, member.mtime, member.uid, member.gid) for member in members} == {(0o644, seconds, 0, 0)}
    with zipfile.ZipFile(dist / f"rljob-{VERSION}-py3-none-any.whl") as wheel:
        times = {entry.date_time for entry in wheel.infolist()}
        assert f"Version: {VERSION}\n" in wheel.read(f"rljob-{VERSION}.dist-info/METADATA").decode()
    (time,) = times  # in steps of two seconds
    assert 0 <= seconds - datetime(*time, tzinfo=UTC).timestamp() < 2


def locked(name: str) -> dict[str, set[str]]:
    """Hashes by package URL of what a lock installs anywhere."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / name).read_text().splitlines():
        if not line.startswith((" ", "#")):
            package, version = line.split()[0].split("==")
            last = found.setdefault(f"pkg:pypi/{package}@{version}", set()) if " ; " not in line else set()
        elif "--hash=" in line:
            last.add(line.split("sha256:")[1].split()[0])
    return found


def bill(dist: Path, name: str) -> dict[str, Any]:
    text = (dist / f"{name}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found: dict[str, Any] = json.loads(text)
    return found


def components(found: dict[str, Any]) -> dict[str, set[str]]:
    """Hashes by package URL."""
    for each in found["components"]:
        assert each["purl"] == f"pkg:pypi/{each['name']}@{each['version']}"
        assert {entry["alg"] for entry in each.get("hashes", [])} <= {"SHA-256"}
    return {each["purl"]: {entry["content"] for entry in each.get("hashes", [])} for each in found["components"]}


@pytest.mark.parametrize(
    ("image", "locks"),
    [
        pytest.param("operator", ["operator"], id="operator"),
        pytest.param("worker-cpu", ["worker-cpu"], id="workers on CPUs"),
        pytest.param("worker-gpu", ["worker-gpu", "sglang"], id="workers on GPUs, with another torch beside it"),
    ],
)
def test_the_bill_of_an_image_has_each_package_of_its_locks(dist: Path, image: str, locks: list[str]) -> None:
    found = bill(dist, f"rljob-{image}-{VERSION}")
    assert found["metadata"]["component"]["type"] == "container"
    held = components(found)
    for lock in locks:
        for purl, hashes in locked(f"images/{lock}.lock").items():
            assert held[purl] == hashes
    assert held[f"pkg:pypi/rljob@{VERSION}"] == set()
    names = [purl.split("@")[0].removeprefix("pkg:pypi/") for purl in held]
    assert "colorama" not in names  # for another system
    assert ("triton" in names) is (image == "worker-gpu")
    assert names.count("torch") == {"operator": 0, "worker-cpu": 1, "worker-gpu": 2}[image]


def test_the_bill_of_the_wheel_has_what_it_runs_with_and_nothing_of_its_tests(dist: Path) -> None:
    wheel = dist / f"rljob-{VERSION}-py3-none-any.whl"
    found = bill(dist, wheel.name)
    assert found["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": digest(wheel)}]
    held, tested = components(found), locked("requirements.lock")
    for lock in ("operator", "worker-gpu"):
        for purl, hashes in locked(f"images/{lock}.lock").items():
            assert held[purl] == hashes
    assert all(held[purl] == hashes for purl, hashes in tested.items() if purl in held)
    names = {purl.split("@")[0].removeprefix("pkg:pypi/") for purl in held}
    assert {"tensorboard", "grpcio", "math-verify", "megatron-core"} <= names
    assert not names & {"pytest", "mypy", "hatchling", "cyclonedx-python-lib", "sglang", "trl", "rljob"}


def test_a_commit_without_its_tag_is_not_released(checkout: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    git(tmp_path, "clone", "--quiet", str(checkout), str(other))
    git(other, "commit", "--quiet", "--allow-empty", "-m", "One more")
    git(other, "tag", "v0.2.9")
    ended = released(other, tmp_path / "dist", umask=0o022, zone="UTC")
    commit = git(other, "rev-parse", "HEAD")[:12]
    assert (ended.returncode, ended.stdout) == (64, "")
    assert ended.stderr == (
        f"release: the commit {commit} has version {VERSION} and v0.2.9. Tag it v{VERSION}, or correct it.\n"
    )
    assert not (tmp_path / "dist").exists()


def test_files_of_before_are_not_taken_for_a_part_of_it(checkout: Path, dist: Path) -> None:
    ended = released(checkout, dist, umask=0o022, zone="UTC")
    assert ended.returncode == 64
    assert ended.stderr == (
        f"release: {dist} holds files already, which would be taken for a part of this release. Remove them.\n"
    )


@pytest.mark.long
def test_the_command_installs_its_tools_from_the_lock(checkout: Path, dist: Path, tmp_path: Path) -> None:
    """As CI calls it: another environment, of the same versions, makes the same bytes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run(
        [str(checkout / "scripts/release"), "--out", str(tmp_path / "dist")],
        env={**environment, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "dist/SHA256SUMS").read_text() == (dist / "SHA256SUMS").read_text()
