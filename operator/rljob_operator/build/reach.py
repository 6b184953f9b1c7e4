"""Effects of a job's templates on others' pods and nodes: a sentence for each thing beyond `workloads.reach`.

The chart's admission policy has the same rules in CEL (`_places.tpl`). Pods of the job itself are known by the label
`rljob.dev/job`, which no template sets. Pure; called for templates that `template_rules` has nothing against.
"""

from collections.abc import Iterator
from typing import Any

from rljob_api import cluster
from rljob_api.roles import field_name
from rljob_api.spec import RLJob
from rljob_operator.options import ForeignPods, ReachOptions

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
GROUP_FIELDS = ("workloadRef", "schedulingGroup")
"""Fields of a pod that put it into a group of pods (Kubernetes 1.35 and later)."""
_GRACE = "terminationGracePeriodSeconds"


def reach_problems(job: RLJob, reach: ReachOptions) -> list[str]:
    """A sentence for each."""
    found = list(_template(job.spec.infrastructure.template, "infrastructure.template", job, reach))
    for role, spec in job.spec.roles.present().items():
        found += _template(spec.template, f"roles.{field_name(role)}.template", job, reach)
    return found


def _template(template: dict[str, Any], path: str, job: RLJob, reach: ReachOptions) -> Iterator[str]:
    metadata, spec = _map(template, "metadata"), _map(template, "spec")
    yield from _keys(_map(metadata, "labels"), f"{path}.metadata.labels", "refusedLabels", reach.refused_labels)
    annotations = _map(metadata, "annotations")
    yield from _keys(annotations, f"{path}.metadata.annotations", "refusedAnnotations", reach.refused_annotations)
    path = f"{path}.spec"
    yield from _time(spec, _GRACE, path, reach)
    for field in GROUP_FIELDS:
        if spec.get(field) is not None:
            yield f"{path}.{field}: puts the pod into a group of others. Remove it; a job's own is scheduling.gang."
    for key in ("containers", "initContainers"):
        for container in _maps(spec, key):
            yield from _ending(container, f"{path}.{key}[{container.get('name')}]", reach)
    if reach.foreign_pods is ForeignPods.REFUSED:
        yield from _pods_of_others(spec, path, job.metadata.name)


def _keys(given: dict[str, Any], path: str, option: str, refused: list[str]) -> Iterator[str]:
    for key in given:
        pattern = next((each for each in refused if _matches(each, key)), None)
        if pattern is not None:
            yield (
                f"{path}.{key}: others may choose pods by it (the operator's workloads.reach.{option} has {pattern})."
                " Choose another key."
            )


def _matches(pattern: str, key: str) -> bool:
    return pattern[1:] in key if pattern.startswith("*") else key.startswith(pattern)


def _ending(container: dict[str, Any], path: str, reach: ReachOptions) -> Iterator[str]:
    """How long a container takes to end. A command before its end takes the pod's grace period at most."""
    for probe in PROBES:
        yield from _time(_map(container, probe), _GRACE, f"{path}.{probe}", reach)
    sleep = _map(_map(_map(container, "lifecycle"), "preStop"), "sleep")
    yield from _time(sleep, "seconds", f"{path}.lifecycle.preStop.sleep", reach)


def _time(value: dict[str, Any], key: str, path: str, reach: ReachOptions) -> Iterator[str]:
    given, most = value.get(key), reach.max_grace_period_seconds
    if isinstance(given, int | float) and given > most:
        yield (
            f"{path}.{key}: {given} is more than {most} (the operator's workloads.reach.maxGracePeriodSeconds): a node"
            " that is drained would wait so long. Give less."
        )


def _pods_of_others(spec: dict[str, Any], path: str, name: str) -> Iterator[str]:
    cure = f"Give labelSelector: {{matchLabels: {{{cluster.LABEL_JOB}: {name}}}}}"
    for index, term in enumerate(_maps(_map(_map(spec, "affinity"), "podAntiAffinity"), _REQUIRED)):
        if not _is_own(term, name) or term.get("namespaces") or term.get("namespaceSelector") is not None:
            yield (
                f"{path}.affinity.podAntiAffinity.{_REQUIRED}[{index}]: keeps pods of others off the nodes of this one."
                f" {cure} and no namespaces, or make it a preference."
            )
    for constraint in _maps(spec, "topologySpreadConstraints"):
        is_required = constraint.get("whenUnsatisfiable", "DoNotSchedule") != "ScheduleAnyway"
        if is_required and constraint.get("labelSelector") is not None and not _is_own(constraint, name):
            yield (
                f"{path}.topologySpreadConstraints[{constraint.get('topologyKey')}]: counts pods of others."
                f" {cure}, or whenUnsatisfiable: ScheduleAnyway."
            )


def _is_own(term: dict[str, Any], name: str) -> bool:
    return _map(_map(term, "labelSelector"), "matchLabels").get(cluster.LABEL_JOB) == name


def _map(value: dict[str, Any], key: str) -> dict[str, Any]:
    """Empty where there is none: the API server judges what else there may be."""
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _maps(value: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = value.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
