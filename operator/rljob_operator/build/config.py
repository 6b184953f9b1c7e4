"""The ConfigMap with the job: what a pod starts with until the coordinator tells it more."""

from pathlib import PurePosixPath

from rljob_api import cluster
from rljob_api.spec import Metadata
from rljob_operator.build.metadata import manifest
from rljob_operator.build.parts import Manifest, Site


def config(site: Site) -> Manifest:
    """The job as it was given; of its metadata only what names it.

    Without defaults: a pod of an earlier version would refuse a field that it does not know, though nobody set it.
    """
    metadata = Metadata(name=site.name, namespace=site.owner.namespace)
    given = site.job.model_copy(update={"metadata": metadata})
    data = {PurePosixPath(cluster.JOB_FILE).name: given.model_dump_json(indent=2, exclude_defaults=True) + "\n"}
    return manifest(site, ("v1", "ConfigMap"), cluster.config_name(site.name), {"data": data})
