"""Accept: from the object that the API server holds to a job and its status, or to what is wrong with them.

Parsed once for each generation, since most turns see the same spec again. Pure but for that memory.
"""

from dataclasses import dataclass

import orjson
from pydantic import ValidationError

from rljob_api.problems import first_problem, sentences
from rljob_api.revision import revision
from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_operator.adapters.api import Json
from rljob_operator.adapters.resources import RLJOBS
from rljob_operator.adapters.views import JobKey

MANAGER = "rljob.dev/operator"
"""What spec.managedBy may say (or leave out) for this operator to take care of a job."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The API server took it, but it cannot work."""

    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A status that no version of this operator has written: nobody knows what the job has done."""

    problem: str


class Accepted:
    """Jobs by key, as of their generation."""

    def __init__(self) -> None:
        self._known: dict[JobKey, tuple[tuple[str, int], RLJob | Refused]] = {}
        self._statuses: dict[JobKey, tuple[str, RLJobStatus | Unreadable]] = {}
        self._revisions: dict[JobKey, tuple[RLJob, str]] = {}

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        self._known.pop(key, None)
        self._statuses.pop(key, None)
        self._revisions.pop(key, None)

    def job(self, key: JobKey, raw: Json) -> RLJob | Refused:
        """The job, or what is wrong with it."""
        version = (raw["metadata"]["uid"], raw["metadata"].get("generation", 0))
        known = self._known.get(key)
        if known is None or known[0] != version:
            known = (version, _parsed(key, raw))
            self._known[key] = known
        return known[1]

    def revision(self, key: JobKey, job: RLJob) -> str:
        """The revision of its spec, which takes longer to work out than all else that a turn observes."""
        known = self._revisions.get(key)
        if known is None or known[0] is not job:
            known = (job, revision(job.spec))
            self._revisions[key] = known
        return known[1]

    def status(self, key: JobKey, raw: Json) -> RLJobStatus | Unreadable:
        """Its status as last persisted, or why it cannot be understood: an empty one would begin the job anew."""
        version: str = raw["metadata"]["resourceVersion"]
        known = self._statuses.get(key)
        if known is None or known[0] != version:
            known = (version, _status(raw))
            self._statuses[key] = known
        return known[1]


def is_ours(raw: Json) -> bool:
    """Whether this operator takes care of the job."""
    return raw["spec"].get("managedBy") in (None, MANAGER)


def _parsed(key: JobKey, raw: Json) -> RLJob | Refused:
    document = {
        "apiVersion": RLJOBS.api_version,
        "kind": RLJOBS.kind,
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": raw["spec"],
    }
    try:
        # Through JSON, so that types are as strict as the manifest's.
        return RLJob.model_validate_json(orjson.dumps(document), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        return Refused(tuple(sentences(error)))


def _status(raw: Json) -> RLJobStatus | Unreadable:
    try:
        return RLJobStatus.model_validate_json(orjson.dumps(raw["status"]))
    except ValidationError as error:
        return Unreadable(first_problem(error))
