"""Every series that our processes may export, by name, with its labels; and what a PromQL expression asks for."""

import re
from dataclasses import dataclass

from rljob_operator.kube.operator_metrics import Metrics
from rljob_workers.dcs.coordinator import metrics as coordinator
from rljob_workers.launcher import probes
from rljob_workers.telemetry.exposition import Families

_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_count", "_sum", "_bucket")}
_JOB = {
    "metadata": {"namespace": "team", "name": "demo"},
    "status": {
        "phase": "Failed",
        "conditions": [{"type": "Ready", "status": "True"}],
        "restart": {"globalRestarts": 1},
        "training": {"step": 1, "totalSteps": 2},
        "endedAt": "2026-01-01T00:00:00Z",
    },
}
TARGET_LABELS = {"namespace", "job", "pod", "container", "service", "endpoint", "instance"}
"""What a scraper knows of whom it asks; `job` and `namespace` are the series' own where it has them."""


@dataclass(frozen=True)
class Asked:
    """A series as an expression names it."""

    name: str
    selector: str
    """What stands in its braces."""


def of_operator() -> dict[str, set[str]]:
    """Series -> labels; without `process_*`, which the client library names."""
    metrics = Metrics()
    metrics.job_series.source = lambda: [_JOB]
    labels = {
        metric._name: {*metric._labelnames} for metric in vars(metrics).values() if hasattr(metric, "_labelnames")
    }
    found: dict[str, set[str]] = {}
    ours = (family for family in metrics.registry.collect() if not family.name.startswith("process_"))
    for family in ours:
        own = labels.get(family.name) or {name for sample in family.samples for name in sample.labels} - {"le"}
        found |= {f"{family.name}{suffix}": own for suffix in _SUFFIXES[family.type]}
    return found


def of_workers() -> dict[str, set[str]]:
    """The same of coordinators and launchers."""
    both: Families = {**coordinator.FAMILIES, **probes.FAMILIES}
    return {name: {"job", *family.labels, *family.optional} for name, family in both.items()}


EXPORTED = {**of_operator(), **of_workers()}


def base(series: str) -> str:
    """The name by which pages speak of it: without what a histogram appends."""
    for suffix in _SUFFIXES["histogram"]:
        if series.endswith(suffix) and f"{series.removesuffix(suffix)}_bucket" in EXPORTED:
            return series.removesuffix(suffix)
    return series


def asked_by(expression: str) -> list[Asked]:
    """The series that an expression names."""
    return [Asked(*found) for found in re.findall(r"\b(rljob_\w+)(?:\{([^}]*)\})?", expression)]


def labels_of(selector: str) -> set[str]:
    """The labels that a selector asks for."""
    return {*re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', selector)}


def grouped_by(expression: str) -> set[str]:
    """The labels that an expression groups or joins by."""
    lists = re.findall(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)", expression)
    return {name.strip() for names in lists for name in names.split(",")} - {""}


def problems(expression: str) -> list[str]:
    """What an expression asks for that no one exports."""
    found, known = [], set(TARGET_LABELS)
    for asked in asked_by(expression):
        if asked.name not in EXPORTED:
            found.append(f"no process of ours exports {asked.name}")
            continue
        own = EXPORTED[asked.name] | TARGET_LABELS
        own |= {"le"} if asked.name.endswith("_bucket") else set()
        known |= own
        found += [f"{asked.name} has no label {name}" for name in labels_of(asked.selector) - own]
    return found + [f"no series of it has the label {name}" for name in grouped_by(expression) - known]
