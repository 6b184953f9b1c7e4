"""The objects of a job as `build` makes them, remembered until something that they are made of changes.

Most turns change nothing of it, and building costs more than all the rest of such a turn.
"""

from collections.abc import Mapping, Sequence

from rljob_api.cluster import ANNOTATION_TEMPLATE
from rljob_api.spec import RLJob
from rljob_api.status import ConditionType, RLJobStatus
from rljob_operator.adapters.api import Json
from rljob_operator.adapters.apply import leaves_alone
from rljob_operator.adapters.views import OwnedView
from rljob_operator.build import Found, Owner, Platform, manifests, overridden
from rljob_operator.options import OperatorOptions

_SCALING = (ConditionType.SUSPENDED, ConditionType.SUCCEEDED, ConditionType.FAILED)
"""Conditions that `build.scale` reads; the others come and go and change no object."""


class ManifestsMemo:
    """Of one job, for the last spec and scale that were asked for."""

    def __init__(self, options: OperatorOptions, platform: Platform) -> None:
        self._options = options
        self._platform = platform
        self._known: tuple[RLJob, object, Sequence[Json]] | None = None
        self._judged: Sequence[Json] | None = None
        self._overridden: list[str] = []

    def of(self, job: RLJob, owner: Owner, status: RLJobStatus, found: Found = Found.NOTHING) -> Sequence[Json]:
        """All objects but the Secret. ValueError with sentences where the pod template cannot be used."""
        scale = tuple((role.name, len(role.pods)) for role in status.roles)
        conditions = frozenset(c.type for c in status.conditions if c.status == "True" and c.type in _SCALING)
        made_of = (owner, scale, conditions, status.restart.epoch > 0, status.restart.releasing, found)
        if self._known is None or self._known[0] is not job or self._known[1] != made_of:
            self._known = (job, made_of, manifests(job, owner, status, self._options, self._platform, found))
        return self._known[2]

    def newly_overridden(self, job: RLJob, made: Sequence[Json]) -> list[str]:
        """Where the job differs from the administrator's template and did not when this was last asked.

        Asked again after each edit, and by an operator with another template in its options: it knows of none before.
        """
        if made is self._judged:
            return []
        before, self._overridden = self._overridden, overridden(job, self._options, made)
        self._judged = made
        return [sentence for sentence in self._overridden if sentence not in before]


def templates(wanted: Sequence[Json], there: Mapping[tuple[str, str], OwnedView]) -> Mapping[str, str]:
    """Deployment -> digest of the template that its new pods get: of one that is left alone, its own."""
    found = {}
    for manifest in wanted:
        if manifest["kind"] != "Deployment":
            continue
        name = manifest["metadata"]["name"]
        known = there.get(("Deployment", name))
        if known is not None and leaves_alone(manifest, known):
            found[name] = known.template
        else:
            found[name] = manifest["spec"]["template"]["metadata"]["annotations"][ANNOTATION_TEMPLATE]
    return found
