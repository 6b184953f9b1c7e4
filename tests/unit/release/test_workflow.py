"""The workflow that a tag starts: thin, with no more rights than it needs, and with no host or secret in it."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from release.packages import IMAGES

ROOT = Path(__file__).parents[3]
FILE = ROOT / ".github/workflows/release.yml"
WORKFLOW: dict[str | bool, Any] = yaml.safe_load(FILE.read_text())
JOBS: dict[str, Any] = WORKFLOW["jobs"]


def test_a_version_tag_alone_starts_it() -> None:
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}  # `on` is a boolean of YAML


def test_each_job_has_the_rights_that_it_needs_and_no_other() -> None:
    assert WORKFLOW["permissions"] == {}
    assert {name: job["permissions"] for name, job in JOBS.items()} == {
        "build": {"contents": "read", "id-token": "write", "attestations": "write"},
        "publish-packages": {"id-token": "write"},
        "publish-images": {"packages": "write"},
        "publish-release": {"contents": "write"},
    }


def test_what_is_built_is_built_by_the_script() -> None:
    (command,) = [step["run"] for step in JOBS["build"]["steps"] if "run" in step]
    _, *images = command.split()[command.split().index("scripts/release") :]
    assert set(images) <= set(IMAGES)
    assert f"for image in {' '.join(images)}; do" in str(JOBS["publish-images"])
    for name, job in JOBS.items():
        if name != "build":
            assert job["needs"] == "build"
            assert "checkout" not in str(job["steps"])


def test_every_action_has_a_whole_version() -> None:
    used = [step["uses"] for job in JOBS.values() for step in job["steps"] if "uses" in step]
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", action)] == []


def test_no_host_and_no_secret_stand_in_it() -> None:
    text = FILE.read_text()
    assert "secrets." not in text
    assert re.findall(r"https?://|\b[\w-]+\.(?:io|org|com|dev)\b", text) == []


def test_it_runs_the_oldest_python_that_the_project_takes() -> None:
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    versions = [step["with"]["python-version"] for step in JOBS["build"]["steps"] if "setup-python" in str(step)]
    assert versions == [oldest]
