"""The spec that was accepted last, for a job whose newest one is refused. Called by the reconciler.

It is remembered; an operator that was started since reads it from the job's ConfigMap, which has the whole manifest and
is only written with what was accepted. Anybody with rights on ConfigMaps may write there, who has none on RLJobs: so
the job's status, which only the operator writes, has the digest of what may be believed.
"""

import hashlib

from pydantic import ValidationError

from rljob_api.cluster import config_name
from rljob_api.spec import RLJob
from rljob_api.status import AcceptedStatus, RLJobStatus
from rljob_operator.adapters.accept import as_stored, recorded_defaults
from rljob_operator.adapters.api import Api, Json
from rljob_operator.adapters.errors import ApiNotFound
from rljob_operator.adapters.resources import CONFIG_MAPS
from rljob_operator.adapters.views import JobKey
from rljob_operator.build import JOB_KEY, job_file


class LastAccepted:
    """One job's."""

    def __init__(self, api: Api, key: JobKey) -> None:
        self._api = api
        self._key = key
        self._known: tuple[RLJob, AcceptedStatus] | None = None

    def note(self, job: RLJob, generation: int) -> AcceptedStatus:
        """This spec can work. What the status shall remember of it."""
        if self._known is None or self._known[0] is not job:
            digest, defaults = _digest(self._file_of(job)), recorded_defaults(job.spec)
            self._known = (job, AcceptedStatus(generation=generation, digest=digest, defaults=defaults))
        return self._known[1]

    async def read(self, status: RLJobStatus) -> tuple[RLJob, AcceptedStatus] | None:
        """The spec and what the status remembers of it; None where there was none, or somebody has changed it."""
        if self._known is None and status.accepted is not None:
            text = await self._text()
            if _digest(text) == status.accepted.digest:
                self._known = _parsed(text, status.accepted)
        return self._known

    def _file_of(self, job: RLJob) -> str:
        return job_file(job, self._key.namespace)

    async def _text(self) -> str:
        try:
            found = await self._api.get(CONFIG_MAPS, self._key.namespace, config_name(self._key.name))
        except ApiNotFound:
            return ""
        data: Json = found.get("data") or {}
        return str(data.get(JOB_KEY, ""))


def _parsed(text: str, accepted: AcceptedStatus) -> tuple[RLJob, AcceptedStatus] | None:
    try:
        job = RLJob.model_validate_json(text, strict=True, by_alias=True, by_name=False)
        return as_stored(job), accepted
    except ValidationError:  # rules of this version that it did not have to keep when it was accepted
        return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
