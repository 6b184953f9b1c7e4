"""Metadata of a job's objects: names, labels, the owner that deletes them, and what they were built for."""

from typing import Any

from rljob_api import cluster
from rljob_operator.build.digests import digest
from rljob_operator.build.parts import Manifest, Part, Site

_STANDARD = {"app.kubernetes.io/name": "rljob", "app.kubernetes.io/managed-by": "rljob-operator"}


def job_labels(site: Site) -> dict[str, str]:
    """On every object."""
    return {**_STANDARD, "app.kubernetes.io/instance": site.name, cluster.LABEL_JOB: site.name}


def part_labels(site: Site, part: Part) -> dict[str, str]:
    """On a part's objects and pods."""
    role = {} if part.role is None else {cluster.LABEL_ROLE: part.role.value}
    return {**job_labels(site), cluster.LABEL_COMPONENT: part.component, **role}


def selector(site: Site, part: Part) -> dict[str, str]:
    """What a part's pods are selected by. Never changes: a Deployment's selector cannot."""
    role = {} if part.role is None else {cluster.LABEL_ROLE: part.role.value}
    return {cluster.LABEL_JOB: site.name, cluster.LABEL_COMPONENT: part.component, **role}


def manifest(
    site: Site,
    kind: tuple[str, str],
    name: str,
    body: dict[str, Any],
    part: Part | None = None,
    labels: dict[str, str] | None = None,
) -> Manifest:
    """An object of `kind` (apiVersion, kind) with everything but its metadata in `body`; `labels` come on top."""
    own = job_labels(site) if part is None else part_labels(site, part)
    made: Manifest = {
        "apiVersion": kind[0],
        "kind": kind[1],
        "metadata": {
            "name": name,
            "namespace": site.owner.namespace,
            "labels": {**(labels or {}), **own},
            "ownerReferences": [_owner_reference(site)],
        },
        **body,
    }
    # What it was built for counts in the digest: an object that a new revision leaves as it is must say so too, or a
    # later version of the operator would take it for one of an older revision and build it anew.
    built_for = {cluster.ANNOTATION_BUILT_FOR: site.revision}
    made["metadata"]["annotations"] = {
        **built_for,
        cluster.ANNOTATION_APPLIED: digest({**made, "annotations": built_for}),
    }
    return made


def _owner_reference(site: Site) -> dict[str, Any]:
    # Without blockOwnerDeletion, which wants a right on the owner's finalizers and would let a deletion wait.
    return {
        "apiVersion": site.job.api_version,
        "kind": site.job.kind,
        "name": site.name,
        "uid": site.owner.uid,
        "controller": True,
    }
