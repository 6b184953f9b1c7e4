"""Prometheus' text format for the coordinator and the launchers, from families that are declared once. Pure.

A sample has the name of a declared family and that family's labels, so that what dashboards, alerts and the pages of
docs/ may name is known without a job (tests/unit/helm/test_metric_names.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

Labels = tuple[tuple[str, str], ...]
"""(name, value), those of the family and in its order."""
Sample = tuple[str, Labels, float]


class Kind(StrEnum):
    """A counter only grows; it starts at 0 again with its process."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Family:
    """The common part of all samples of a name. The label `job` comes with every one of them."""

    text: str
    labels: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    """Labels after those that only some samples have."""


Families = Mapping[str, Family]
"""Families by name; a counter's ends in `_total`."""


def kind_of(name: str) -> Kind:
    """The kind that Prometheus' naming rules give a metric of this name."""
    return Kind.COUNTER if name.endswith("_total") else Kind.GAUGE


def render(families: Families, common: Labels, samples: Iterable[Sample]) -> str:
    """The page, sorted by name. `common` are the first labels of every sample."""
    grouped: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        grouped[sample[0]].append(sample)
    return "".join(_page_of(families, name, common, rows) for name, rows in sorted(grouped.items()))


def _page_of(families: Families, name: str, common: Labels, rows: list[Sample]) -> str:
    assert name in families, f"{name} is no declared metric: add it to the families of its module and to docs/"
    family = families[name]
    lines = [f"# HELP {name} {_escaped(family.text)}\n# TYPE {name} {kind_of(name)}\n"]
    for _, labels, value in rows:
        given = tuple(key for key, _ in labels)
        assert given in (family.labels, family.labels + family.optional), f"{name} has the labels {given}"
        inside = ",".join(f'{key}="{_quoted(text)}"' for key, text in (*common, *labels))
        lines.append(f"{name}{{{inside}}} {value}\n")
    return "".join(lines)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
