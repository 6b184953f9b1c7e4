"""What the operator would make of a job, for `rljob render --kubernetes`: to look at, not to apply.

The owner is left out, since there is none before the job is applied, and so is the Secret, which the operator draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from rljob_api.status import RLJobStatus
from rljob_operator.build import Owner, Platform, manifests, overridden, warnings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rljob_api.spec import RLJob
    from rljob_operator.build import Manifest
    from rljob_operator.options import OperatorOptions

_NAMESPACE = "default"


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block, and every object in full."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the signature is yaml's
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def kubernetes_objects(job: RLJob, options: OperatorOptions) -> str:
    """The objects as YAML, and as comments what the operator would say. ValueError where a template is refused."""
    owner = Owner(namespace=job.metadata.namespace or _NAMESPACE, uid="")
    objects = manifests(job, owner, RLJobStatus(), options, Platform(pod_groups=True))
    for found in objects:
        found["metadata"].pop("ownerReferences", None)
    said = [*warnings(job), *overridden(job, options, objects)]
    return "".join(f"# {sentence}\n" for sentence in said) + as_yaml(objects)


def as_yaml(objects: Sequence[Manifest]) -> str:
    """The objects in their order, for a reader."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=120)
