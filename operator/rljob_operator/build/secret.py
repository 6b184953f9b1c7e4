"""The Secret of a job: the token of its coordinator and the password of its Redis servers.

Made once, by the operator that draws both, and immutable: a rotation under running pods would lock them out.
"""

import base64

from rljob_api import cluster
from rljob_api.spec import RLJob
from rljob_operator.build.metadata import manifest
from rljob_operator.build.parts import Manifest, Owner, Site
from rljob_operator.options import OperatorOptions

TOKEN_KEY = "token"  # noqa: S105 - a name
PASSWORD_KEY = "redis-password"  # noqa: S105 - a name


def secret(job: RLJob, owner: Owner, token: str, password: str) -> Manifest:
    """The Secret with what the operator has drawn."""
    data = {TOKEN_KEY: token, PASSWORD_KEY: password}
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    site = Site.of(job, owner, OperatorOptions())
    return manifest(
        site, ("v1", "Secret"), cluster.secret_name(site.name), {"type": "Opaque", "immutable": True, "data": encoded}
    )
