"""The claim that is made for a job's checkpoints, and what it says of them when its job is gone.

One that stays has no owner reference. It says instead whose it is, which run its checkpoints are of, and by what spec
they were made: a later job of the name is compared with that, and `rljob clone` reads it.
"""

from enum import Enum
from typing import Any

from rljob_api import cluster
from rljob_api.run_identity import kept_spec, run_digest
from rljob_api.spec import OnDelete
from rljob_operator.build.digests import digest
from rljob_operator.build.metadata import manifest
from rljob_operator.build.parts import Manifest, Site

_LONGEST_SPEC = 128 * 1024
"""Characters; the API server takes 256 KiB of annotations. A longer one is not kept, and cannot be cloned from."""


class Found(Enum):
    """What there is of the claim before it is built."""

    NOTHING = "nothing"
    """Or one that this version of the operator has made."""
    PROMISED = "promised"
    """One that release 0.1.0 has made for this job, which was to go with it."""


def claim(site: Site, found: Found) -> Manifest:
    """The claim. One that was promised to go with its job does, unless the spec says what becomes of it."""
    made = _owned(site)
    on_delete = site.job.spec.checkpoint.volume.on_delete
    if found is Found.PROMISED and on_delete is None:
        return made
    metadata = made["metadata"]
    if on_delete is not OnDelete.DELETE:
        del metadata["ownerReferences"]
    said = {
        cluster.ANNOTATION_RUN: run_digest(site.job.spec),
        cluster.ANNOTATION_RUN_OF: site.owner.uid,
        **_spec(site),
    }
    # The digest of what was applied stays that of the claim as release 0.1.0 makes it, which leaves it alone then: by
    # another one it would take the claim for the job's own, to go with it.
    metadata["annotations"] |= {**said, cluster.ANNOTATION_KEPT: digest([said, metadata.get("ownerReferences")])}
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
    text = kept_spec(site.job.spec)
    return {cluster.ANNOTATION_SPEC: text} if len(text) <= _LONGEST_SPEC else {}
