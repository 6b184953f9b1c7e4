"""The manifests that are committed, and how they are written: `python -m tests.unit.build.goldens` does it anew."""

import sys
from collections.abc import Callable
from pathlib import Path

from rljob_cli.kubernetes_objects import as_yaml
from rljob_operator.build import Manifest, Platform
from rljob_operator.options import OperatorOptions
from tests.unit.build import jobs

FOLDER = Path(__file__).parent / "golden"

GOLDENS: dict[str, Callable[[], list[Manifest]]] = {
    "quickstart.yaml": lambda: jobs.everything(jobs.quickstart(), OperatorOptions(), Platform()),
    "rich.yaml": lambda: jobs.everything(jobs.rich(), jobs.RICH_OPTIONS, Platform(pod_monitors=True)),
}


if __name__ == "__main__":
    for name, make in GOLDENS.items():
        (FOLDER / name).write_text(as_yaml(make()))
        sys.stdout.write(f"{FOLDER / name}\n")
