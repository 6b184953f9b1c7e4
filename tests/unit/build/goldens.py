"""The manifests that are committed, and how they are written: `python -m tests.unit.build.goldens` does it anew."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import yaml

from rljob_operator.build import Manifest, Platform
from rljob_operator.options import OperatorOptions
from tests.unit.build import jobs

FOLDER = Path(__file__).parent / "golden"

GOLDENS: dict[str, Callable[[], list[Manifest]]] = {
    "quickstart.yaml": lambda: jobs.everything(jobs.quickstart(), OperatorOptions(), Platform()),
    "rich.yaml": lambda: jobs.everything(jobs.rich(), jobs.RICH_OPTIONS, Platform(pod_monitors=True)),
}


def text(manifests: Iterable[Manifest]) -> str:
    """As they are committed: in the order in which they are applied."""
    return yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block; no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _represent)


if __name__ == "__main__":
    for name, make in GOLDENS.items():
        (FOLDER / name).write_text(text(make()))
        sys.stdout.write(f"{FOLDER / name}\n")
