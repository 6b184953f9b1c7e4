"""The spec of a job: parsed from the API server, and the last one that was accepted.

Called by the reconciler. The last accepted spec is read back from the job's ConfigMap after a restart of the operator
and believed only if its digest is the one in the job's status, which only the operator writes.
"""

import hashlib
from dataclasses import dataclass

import orjson
from pydantic import ValidationError

from rljob_api.cluster import config_name
from rljob_api.names import EngineKind
from rljob_api.open_defaults import JobPlace, RetainedDefaults, resolve
from rljob_api.problems import first_problem, sentences
from rljob_api.revision import revision
from rljob_api.spec import RLJob, RLJobSpec
from rljob_api.spec.model import Dtype
from rljob_api.status import AcceptedStatus, DefaultsStatus, RLJobStatus
from rljob_operator.build import JOB_KEY, job_file
from rljob_operator.kube.api import Api, Json
from rljob_operator.kube.errors import ApiNotFound
from rljob_operator.kube.kinds import CONFIG_MAPS, RLJOBS
from rljob_operator.kube.stored_spec import TOO_DEEP, StoredSpec
from rljob_operator.kube.views import JobKey

MANAGER = "rljob.dev/operator"
"""What spec.managedBy may be (or left out) for this operator to take care of a job."""


@dataclass(frozen=True, slots=True)
class InvalidManifest:
    """The API server took it, but it cannot work."""

    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A status that no version of this operator has written: what the job has done is unknown."""

    problem: str


class AcceptedSpec:
    """One job as of its last generation, its status as of its last version, and the spec that was accepted last."""

    def __init__(self, api: Api, key: JobKey) -> None:
        self._api = api
        self._key = key
        self._job: tuple[int, RLJob | InvalidManifest] | None = None
        self._status: tuple[str, RLJobStatus | Unreadable] | None = None
        self._revision: tuple[RLJob, str] | None = None
        self._accepted: tuple[RLJob, AcceptedStatus] | None = None

    def known(self, raw: Json) -> RLJob | InvalidManifest | None:
        """The job or what is wrong with it, where that generation was parsed and not forgotten."""
        generation: int = raw["metadata"].get("generation", 0)
        return self._job[1] if self._job is not None and self._job[0] == generation else None

    def job(self, raw: Json) -> RLJob | InvalidManifest:
        """The job, or what is wrong with it. Not in the loop: a large one takes long."""
        known = self.known(raw)
        if known is not None:
            return known
        job = _parsed_manifest(self._key, raw["spec"])
        if not isinstance(job, InvalidManifest):
            job = _resolved(job, self.status(raw))
            self.revision(job)
        self._job = (raw["metadata"].get("generation", 0), job)
        return job

    @property
    def is_parsed(self) -> bool:
        """Whether a parsed spec is in memory, the newest or the one that was accepted last."""
        return self._accepted is not None or (self._job is not None and isinstance(self._job[1], RLJob))

    def forget(self) -> None:
        """Gives the memory of parsed specs back; they are parsed again when they are asked for."""
        self._job = self._revision = self._accepted = None

    def revision(self, job: RLJob) -> str:
        """The revision of its spec, which takes longer to work out than all else that a turn observes."""
        if self._revision is None or self._revision[0] is not job:
            self._revision = (job, revision(job.spec))
        return self._revision[1]

    def status(self, raw: Json) -> RLJobStatus | Unreadable:
        """Its status as last persisted, or why it cannot be understood: an empty one would begin the job again."""
        version: str = raw["metadata"]["resourceVersion"]
        if self._status is None or self._status[0] != version:
            self._status = (version, _status(raw))
        return self._status[1]

    def note(self, job: RLJob, generation: int) -> AcceptedStatus:
        """This spec can work. What the status shall remember of it."""
        if self._accepted is None or self._accepted[0] is not job:
            digest, defaults = _digest(job_file(job, self._key.namespace)), recorded_defaults(job.spec)
            self._accepted = (job, AcceptedStatus(generation=generation, digest=digest, defaults=defaults))
        return self._accepted[1]

    async def last(self, status: RLJobStatus) -> tuple[RLJob, AcceptedStatus] | None:
        """The spec and what the status remembers of it; None where there was none, or it was changed since."""
        if self._accepted is None and status.accepted is not None:
            text = await self._text()
            if status.accepted.digest == _digest(text) or status.accepted.digest == _digest(_indented(text)):
                self._accepted = _parsed_file(text, status.accepted)
        return self._accepted

    async def _text(self) -> str:
        try:
            found = await self._api.get(CONFIG_MAPS, self._key.namespace, config_name(self._key.name))
        except ApiNotFound:
            return ""
        data: Json = found.get("data") or {}
        return str(data.get(JOB_KEY, ""))


def is_ours(raw: Json) -> bool:
    """Whether this operator takes care of the job."""
    spec: StoredSpec = raw["spec"]
    return spec.managed_by in (None, MANAGER)


def _parsed_manifest(key: JobKey, spec: StoredSpec) -> RLJob | InvalidManifest:
    if spec.problem:
        return InvalidManifest((spec.problem,))
    head = {
        "apiVersion": RLJOBS.api_version,
        "kind": RLJOBS.kind,
        "metadata": {"name": key.name, "namespace": key.namespace},
    }
    try:
        # Through JSON, so that types are as strict as the manifest's.
        text = orjson.dumps({**head, "spec": orjson.Fragment(spec.text())})
        return RLJob.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        is_too_deep = any(each["type"] == "json_invalid" for each in error.errors(include_input=False))
        return InvalidManifest((TOO_DEEP,) if is_too_deep else tuple(sentences(error)))


def as_stored(job: RLJob) -> RLJob:
    """A job whose defaults were resolved before it was stored: a field that it omits stays omitted."""
    resolution = resolve(job.spec, JobPlace.CLUSTER, RetainedDefaults.of(job.spec))
    return job.model_copy(update={"spec": resolution.spec})


def recorded_defaults(spec: RLJobSpec) -> DefaultsStatus:
    """What the status keeps of a resolved spec."""
    defaults = RetainedDefaults.of(spec)
    head_dtype = defaults.head_dtype.value if defaults.head_dtype is not None else ""
    return DefaultsStatus(
        actor_fwd=defaults.has_proximal_role,
        advantages=defaults.has_advantages_role,
        engine=defaults.engine.value,
        head_dtype=head_dtype,
        iters_per_train_update=defaults.iters_per_train_update,
        sets_inherit=defaults.sets_inherit,
    )


def _resolved(job: RLJob, status: RLJobStatus | Unreadable) -> RLJob:
    """By the defaults in the status, so that a job keeps its defaults over edits and other versions of the operator."""
    if isinstance(status, Unreadable):
        return job  # nothing is done with it
    recorded = status.accepted.defaults if status.accepted is not None else None
    if recorded is None:
        had = None
    elif recorded.engine in tuple(EngineKind):
        head_dtype = Dtype(recorded.head_dtype) if recorded.head_dtype in tuple(Dtype) else None
        had = RetainedDefaults(
            recorded.actor_fwd,
            EngineKind(recorded.engine),
            has_advantages_role=recorded.advantages,
            head_dtype=head_dtype,
            iters_per_train_update=recorded.iters_per_train_update,
            sets_inherit=recorded.sets_inherit,
        )
    else:  # an engine that only another version of the operator knows
        return as_stored(job)
    return job.model_copy(update={"spec": resolve(job.spec, JobPlace.CLUSTER, had).spec})


def _status(raw: Json) -> RLJobStatus | Unreadable:
    try:
        return RLJobStatus.model_validate_json(orjson.dumps(raw["status"]))
    except ValidationError as error:
        return Unreadable(first_problem(error))


def _parsed_file(text: str, accepted: AcceptedStatus) -> tuple[RLJob, AcceptedStatus] | None:
    try:
        return as_stored(_read_file(text)), accepted
    except ValidationError:  # rules of this version that it did not have to keep when it was accepted
        return None


def _indented(text: str) -> str:
    """The file as release 0.2.0 writes it.

    The status keeps the digest of that text while newer specs are refused, also once the ConfigMap has the compact one.
    """
    try:
        return _read_file(text).model_dump_json(indent=2, exclude_defaults=True) + "\n"
    except ValidationError:
        return ""


def _read_file(text: str) -> RLJob:
    return RLJob.model_validate_json(text, strict=True, by_alias=True, by_name=False)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
