"""The chart as tests see it: rendered by the real helm, parsed."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[3] / "helm/rljob-operator"
HERE = Path(__file__).parent

Object = dict[str, Any]


def helm(*arguments: str, program: str = "helm") -> str:
    """Its output; an AssertionError with what it said if it fails."""
    done = _run(program, arguments)
    assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def refusal(*arguments: str, program: str = "helm") -> str:
    """What it says where it must refuse."""
    done = _run(program, arguments)
    assert done.returncode != 0, f"helm {' '.join(arguments)} went well: {done.stdout[:500]}"
    return done.stderr


def render(*arguments: str, chart: Path = CHART) -> str:
    """The chart's manifests, without CRD and dashboards (tests of their own look at these) unless the arguments ask."""
    # The version is given, since helm would take that of its own build; no cluster is asked.
    fixed = (
        "--namespace",
        "rl-system",
        "--kube-version",
        "1.34.0",
        "--set",
        "crd.install=false,monitoring.dashboards.create=false",
    )
    return helm("template", "demo", str(chart), *fixed, *arguments)


def objects(text: str) -> list[Object]:
    """The manifests of a rendered chart."""
    return [document for document in yaml.safe_load_all(text) if document]


def only(manifests: list[Object], kind: str, name_ends: str = "") -> Object:
    """The one of this kind."""
    found = [each for each in manifests if each["kind"] == kind and each["metadata"]["name"].endswith(name_ends)]
    assert len(found) == 1, f"{len(found)} objects of kind {kind}"
    return found[0]


def _run(program: str, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=540, check=False)
