"""The ConfigMap with the resolved job: what a pod starts with until the coordinator tells it more."""

from pathlib import PurePosixPath

from rljob_api import cluster
from rljob_api.spec import Metadata
from rljob_operator.build.metadata import manifest
from rljob_operator.build.parts import Manifest, Site


def config(site: Site) -> Manifest:
    """The job with all defaults filled in; of its metadata only what names it."""
    metadata = Metadata(name=site.name, namespace=site.owner.namespace)
    resolved = site.job.model_copy(update={"metadata": metadata})
    data = {PurePosixPath(cluster.JOB_FILE).name: resolved.model_dump_json(indent=2) + "\n"}
    return manifest(site, ("v1", "ConfigMap"), cluster.config_name(site.name), {"data": data})
