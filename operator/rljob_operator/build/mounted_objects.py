"""The objects that pods mount: the job's ConfigMap, its Secret, and the claim for its checkpoints.

The Secret is made once and immutable: a rotation under running pods would lock them out. A retained claim has no owner
reference; it records whose it is, which run its checkpoints belong to and by what spec they were made: a later job of
the name is compared with that, and `rljob clone` reads it. Pure.
"""

import base64
from enum import Enum
from pathlib import PurePosixPath
from typing import Any

from rljob_api import cluster
from rljob_api.revision import retained_spec, run_digest
from rljob_api.spec import Metadata, RLJob
from rljob_api.spec.checkpoint import OnDelete
from rljob_operator.build.parts import Manifest, Owner, Site, digest, manifest
from rljob_operator.options import OperatorOptions

JOB_KEY = PurePosixPath(cluster.JOB_FILE).name
"""In the ConfigMap's data."""


def config(site: Site) -> Manifest:
    """The job as it was given; of its metadata only what names it.

    Without defaults: a pod of an earlier version would refuse a field that it does not know and that was not set.
    """
    data = {JOB_KEY: job_file(site.job, site.owner.namespace)}
    return manifest(site, ("v1", "ConfigMap"), cluster.config_name(site.name), {"data": data})


def job_file(job: RLJob, namespace: str) -> str:
    """The text of the file. The operator reads it, too: it is where a spec outlives an edit that is refused."""
    given = job.model_copy(update={"metadata": Metadata(name=job.metadata.name, namespace=namespace)})
    return given.model_dump_json(exclude_defaults=True) + "\n"


TOKEN_KEY = "token"  # noqa: S105 - a name


PASSWORD_KEY = "redis-password"  # noqa: S105 - a name


def secret(job: RLJob, owner: Owner, token: str, password: str, name: str = "") -> Manifest:
    """The Secret with what the operator has drawn; its copy by another `name`."""
    data = {TOKEN_KEY: token, PASSWORD_KEY: password}
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    site = Site.of(job, owner, OperatorOptions())
    body = {"type": "Opaque", "immutable": True, "data": encoded}
    return manifest(site, ("v1", "Secret"), name or cluster.secret_name(site.name), body)


_LONGEST_SPEC = 128 * 1024
"""Characters; the API server takes 256 KiB of annotations. A longer one is not recorded, and cannot be cloned from."""


class Found(Enum):
    """What there is of the claim before it is built."""

    NOTHING = "nothing"
    """Or one that this version of the operator has made."""
    PROMISED = "promised"
    """One that was made for this job to go with it, before claims stayed by default; release 0.2.0 leaves it so."""


def claim(site: Site, found: Found) -> Manifest:
    """The claim. One that was promised to go with its job does, unless the spec decides what becomes of it."""
    made = _owned(site)
    on_delete = site.job.spec.checkpoint.volume.on_delete
    if found is Found.PROMISED and on_delete is None:
        return made
    metadata = made["metadata"]
    if on_delete is not OnDelete.DELETE:
        del metadata["ownerReferences"]
    recorded = {
        cluster.ANNOTATION_RUN: run_digest(site.job.spec),
        cluster.ANNOTATION_RUN_OF: site.owner.uid,
        **_spec(site),
    }
    # The digest of what was applied stays that of the claim as it goes with its job: release 0.2.0 wrote this one, and
    # would apply a claim with another one again.
    metadata["annotations"] |= {
        **recorded,
        cluster.ANNOTATION_RETAINED: digest([recorded, metadata.get("ownerReferences")]),
    }
    return made


def _owned(site: Site) -> Manifest:
    """As it goes with the job."""
    volume = site.job.spec.checkpoint.volume
    spec: dict[str, Any] = {
        "accessModes": [volume.access_mode.value],
        "resources": {"requests": {"storage": volume.size}},
    }
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    name = cluster.checkpoint_claim_name(site.name)
    return manifest(site, ("v1", "PersistentVolumeClaim"), name, {"spec": spec})


def _spec(site: Site) -> dict[str, str]:
    text = retained_spec(site.job.spec)
    return {cluster.ANNOTATION_SPEC: text} if len(text) <= _LONGEST_SPEC else {}
