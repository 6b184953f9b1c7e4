"""The ConfigMap with the job: what a pod starts with until the coordinator tells it more."""

from pathlib import PurePosixPath

from rljob_api import cluster
from rljob_api.spec import Metadata, RLJob
from rljob_operator.build.metadata import manifest
from rljob_operator.build.parts import Manifest, Site

JOB_KEY = PurePosixPath(cluster.JOB_FILE).name
"""In the ConfigMap's data."""


def config(site: Site) -> Manifest:
    """The job as it was given; of its metadata only what names it.

    Without defaults: a pod of an earlier version would refuse a field that it does not know, though nobody set it.
    """
    data = {JOB_KEY: job_file(site.job, site.owner.namespace)}
    return manifest(site, ("v1", "ConfigMap"), cluster.config_name(site.name), {"data": data})


def job_file(job: RLJob, namespace: str) -> str:
    """The text of the file. The operator reads it, too: it is where a spec outlives an edit that is refused."""
    given = job.model_copy(update={"metadata": Metadata(name=job.metadata.name, namespace=namespace)})
    return given.model_dump_json(indent=2, exclude_defaults=True) + "\n"
