"""Objects that a job names and that are the administrator's: a sentence for each, by the table of `named_objects`.

What a job has written is judged, and not the pod templates that are built of it: there a Secret of a field of the spec
looks like one that the operator has put there itself. Pure; called for templates that `template_rules` has nothing
against.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_snake

from rljob_api.roles import field_name
from rljob_api.spec import RLJob
from rljob_operator.build.named_objects import (
    CONTAINER_LISTS,
    OWN_NAMES,
    POD_PLACES,
    SPEC_PLACES,
    Access,
    Kind,
    Place,
    names_at,
)
from rljob_operator.build.scheduling import makes_claim
from rljob_operator.options import ReservedObjects, WorkloadOptions

_RESERVED = {
    Kind.SECRET: "secrets",
    Kind.CONFIG_MAP: "config_maps",
    Kind.CLAIM: "persistent_volume_claims",
    Kind.SERVICE_ACCOUNT: "service_accounts",
    Kind.RESOURCE_CLAIM: "resource_claims",
}
"""Fields of the operator's option `workloads.reservedObjects`."""


@dataclass(frozen=True, slots=True)
class Administrators:
    """The objects that the operator's options name: for each its option."""

    named: dict[tuple[Kind, str], str]
    pulled: frozenset[str]
    """Secrets that all pods pull images with."""
    reserved: ReservedObjects

    def option(self, place: Place, name: str) -> str | None:
        """The option that makes the object of this name the administrator's."""
        found = self.named.get((place.kind, name))
        if found is not None and place.access is not Access.LISTED:
            return None if place.access is Access.PULLED and name in self.pulled else found
        patterns: list[str] = getattr(self.reserved, _RESERVED[place.kind]) if place.kind in _RESERVED else []
        return "workloads.reservedObjects" if any(_matches(pattern, name) for pattern in patterns) else None


def administrators(workloads: WorkloadOptions) -> Administrators:
    """Objects that the operator's options name."""
    named: dict[tuple[Kind, str], str] = {}
    pulled = set(workloads.pull_secrets)
    for place in (each for each in POD_PLACES if each.access in (Access.OPEN, Access.PULLED)):
        names = [name for _, name in names_at(workloads.pod_template, place.path, "")]
        named |= {(place.kind, name): "workloads.podTemplate" for name in names}
        pulled |= set(names) if place.access is Access.PULLED else set()
    named |= {(Kind.SECRET, name): "workloads.pullSecrets" for name in workloads.pull_secrets}
    return Administrators(named, frozenset(pulled), workloads.reserved_objects)


def foreign_objects(job: RLJob, workloads: WorkloadOptions) -> list[str]:
    """A sentence for each object that a job names, or would make, and that belongs to the administrator."""
    admin = administrators(workloads)
    own = {
        (kind, f"{before}{job.metadata.name}{after}")
        for kind, before, after in OWN_NAMES
        if kind is not Kind.CLAIM or before or makes_claim(job)
    }
    found = [*_made(admin, own)]
    spec = _with_names(job)
    for place in SPEC_PLACES:
        found += _named(admin, own, place, spec, "")
    for path, template in _templates(job):
        rest = _without_repeated(template, workloads.pod_template)
        for place in POD_PLACES:
            found += _named(admin, own, place, rest, path)
    return list(dict.fromkeys(found))


_JUDGED = (Access.OPEN, Access.PULLED, Access.LISTED)


def _with_names(job: RLJob) -> dict[str, Any]:
    """The parts of the spec that hold `SPEC_PLACES` which are judged."""
    parts = {to_snake(place.path[0]) for place in SPEC_PLACES if place.access in _JUDGED}
    dumped: dict[str, Any] = job.spec.model_dump(mode="json", include=parts)
    return dumped


def _templates(job: RLJob) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "infrastructure.template", job.spec.infrastructure.template
    for role, spec in job.spec.roles.present().items():
        yield f"roles.{field_name(role)}.template", spec.template


def _made(admin: Administrators, own: set[tuple[Kind, str]]) -> Iterator[str]:
    for kind, name in sorted(own):
        option = admin.named.get((kind, name))
        # Not by a pattern: it is there for what others name, and what a job makes is the job's.
        if option is None and kind in _RESERVED and name in getattr(admin.reserved, _RESERVED[kind]):
            option = "workloads.reservedObjects"
        if option is not None:
            yield (
                f"metadata.name: the {kind} {name}, which a job of this name makes, is one that the operator's"
                f" {option} names. Give the job another name."
            )


def _named(admin: Administrators, own: set[tuple[Kind, str]], place: Place, value: object, path: str) -> Iterator[str]:
    for where, name in names_at(value, place.path, path):
        option = admin.option(place, name)
        if option is not None and (place.kind, name) not in own:
            yield f"{where}: the {place.kind} {name} is one that the operator's {option} names. Name another one."


def _without_repeated(template: dict[str, Any], administrators_own: dict[str, Any]) -> dict[str, Any]:
    """A template without variables that it has as the administrator gives them to the same container.

    `envFrom` is replaced as a whole, so that a job which adds to it has to repeat what is there.
    """
    spec, given = template.get("spec"), administrators_own.get("spec")
    if not isinstance(spec, dict) or not isinstance(given, dict):
        return template
    pruned = {**spec}
    for key in CONTAINER_LISTS:
        if isinstance(spec.get(key), list):
            pruned[key] = [_pruned(each, _of_name(given.get(key), each)) for each in spec[key]]
    return {**template, "spec": pruned}


def _of_name(entries: object, container: object) -> dict[str, Any]:
    name = container.get("name") if isinstance(container, dict) else None
    known = [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    return next((each for each in known if each.get("name") == name), {})


def _pruned(container: object, given: dict[str, Any]) -> object:
    if not isinstance(container, dict):
        return container
    lists = {key: container[key] for key in ("env", "envFrom") if isinstance(container.get(key), list)}
    rest = {key: [one for one in each if one not in (given.get(key) or [])] for key, each in lists.items()}
    return {**container, **rest}


def _matches(pattern: str, name: str) -> bool:
    return name.endswith(pattern[1:]) if pattern.startswith("*") else name == pattern
