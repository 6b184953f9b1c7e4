"""The manifests that are committed, each value once, and how they are written: `python -m tests.unit.build.goldens`.

A golden says in what an object differs from an earlier one, the one that it is most like: nothing is left out, since
the earlier one is there too, and what sets an object apart is not lost among what all have in common. Where an object
repeats the spec of its job as the job's file has it, it says so.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from rljob_cli.commands.render import as_yaml
from rljob_operator.build import Manifest, Platform
from rljob_operator.options import OperatorOptions
from tests.unit.build import jobs

FILE = Path(__file__).parent / "golden.yaml"
LIKE, ORDER, GONE, SPEC, NAME = "(like)", "(order)", "(not here)", "(the spec of the job's file)", "(job)"

GOLDENS: dict[Path, Callable[[], list[Manifest]]] = {
    jobs.EXAMPLES / "quickstart.yaml": lambda: jobs.everything(jobs.quickstart(), OperatorOptions(), Platform()),
    jobs.HERE / "rich.yaml": lambda: jobs.everything(jobs.rich(), jobs.RICH_OPTIONS, Platform(pod_monitors=True)),
}
"""A job's file -> what becomes of it."""


def goldens() -> dict[str, Any]:
    """Object -> in what it differs from which earlier one."""
    seen: dict[str, Any] = {}
    reported: dict[str, Any] = {}
    for file, make in GOLDENS.items():
        job = yaml.safe_load(file.read_text())
        for manifest in make():
            whole = _keyed(manifest, job["metadata"]["name"], job["spec"])
            title = f"{file.stem}: {manifest['kind']} {whole['metadata']['name']}"
            differences = {like: _difference(earlier, whole) for like, earlier in seen.items()}
            like = min(differences, key=lambda each: len(str(differences[each])), default=None)
            reported[title] = whole if like is None else {LIKE: like, **differences[like]}
            assert title not in seen
            seen[title] = whole
    return reported


def text() -> str:
    """The file as it is committed."""
    return as_yaml([{title: rows} for title, rows in goldens().items()])


def _keyed(value: Any, job: str, spec: Any) -> Any:
    """Lists of what has names become tables by them, JSON in an annotation or a file what it says, a job's name a mark.

    By another name each of the values that have it would be another one.
    """
    if isinstance(value, str):
        return _keyed(json.loads(value), job, spec) if value.startswith("{") else value.replace(job, NAME)
    if value == spec:
        return SPEC
    if isinstance(value, dict):
        return {_keyed(key, job, spec): _keyed(inner, job, spec) for key, inner in value.items()}
    if isinstance(value, list):
        elements = [_keyed(each, job, spec) for each in value]
        names = [str(each.get("name", "")) if isinstance(each, dict) else "" for each in elements]
        if all(names) and len(set(names)) == len(names) > 0:
            return {ORDER: ", ".join(names), **dict(zip(names, elements, strict=True))}
        return elements
    return value


def _difference(earlier: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """What has to be changed in the earlier one."""
    changed: dict[str, Any] = {key: GONE for key in earlier if key not in value}
    for key, now in value.items():
        before = earlier.get(key)
        if isinstance(before, dict) and isinstance(now, dict) and before and now:
            if inner := _difference(before, now):
                changed[key] = inner
        elif key not in earlier or before != now:
            changed[key] = now
    return changed


if __name__ == "__main__":
    FILE.write_text(text())
    sys.stdout.write(f"{FILE}\n")
