"""From an RLJob to the Kubernetes objects that it is made of: pure functions, plain dicts.

Called by the operator before it applies, and by `rljob render --kubernetes`. Does no I/O, draws no secret, reads no
clock: the same job, status and options give the same manifests, to the byte.
"""

from rljob_operator.build.manifests import FoundClaims, MissingApi, manifests
from rljob_operator.build.mounted_objects import JOB_KEY, Found, job_file, secret
from rljob_operator.build.parts import Manifest, Owner, Platform, digest
from rljob_operator.build.redis import ClaimedBy
from rljob_operator.build.template_rules import options_problems, template_problems
from rljob_operator.build.warnings import overridden, warnings

__all__ = [
    "JOB_KEY",
    "ClaimedBy",
    "Found",
    "FoundClaims",
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
