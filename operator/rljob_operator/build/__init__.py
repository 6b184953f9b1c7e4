"""From an RLJob to the Kubernetes objects that it is made of: pure functions, plain dicts.

Called by the operator before it applies, and by `rljob render --kubernetes`. Talks to nobody, draws no secret, reads no
clock: the same job, status and options give the same manifests, to the byte.
"""

from rljob_operator.build.checkpoint_claim import Found
from rljob_operator.build.config import JOB_KEY, job_file
from rljob_operator.build.digests import digest
from rljob_operator.build.manifests import MissingApi, manifests
from rljob_operator.build.overridden import overridden
from rljob_operator.build.parts import Manifest, Owner, Platform
from rljob_operator.build.secret import secret
from rljob_operator.build.template_rules import options_problems, template_problems
from rljob_operator.build.warnings import warnings

__all__ = [
    "JOB_KEY",
    "Found",
    "Manifest",
    "MissingApi",
    "Owner",
    "Platform",
    "digest",
    "job_file",
    "manifests",
    "options_problems",
    "overridden",
    "secret",
    "template_problems",
    "warnings",
]
