"""The Workload of one job: reads what Kueue has decided, and writes what `workload_writes` says is due.

Called by the reconciler: `look` before a decision, `bring` after what was decided is persisted and carried out.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_api.cluster import workload_name
from rljob_api.status import ConditionType, RLJobStatus
from rljob_api.times import timestamp
from rljob_operator.build.workload import QueueRequest
from rljob_operator.core.conditions import is_true
from rljob_operator.core.queue import QueueFact
from rljob_operator.kube.api import Api, Json
from rljob_operator.kube.apply import Refusal, read
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.clock import Clock
from rljob_operator.kube.errors import ApiConflict, ApiNotFound, ApiRefused
from rljob_operator.kube.kinds import (
    PRIORITY_CLASSES,
    RESOURCE_FLAVORS,
    WORKLOAD_PRIORITY_CLASSES,
    WORKLOADS,
    Resource,
)
from rljob_operator.kube.ownership import ObjectHolder, foreign, holder
from rljob_operator.kube.views import JobKey, OwnedView, view_owned
from rljob_operator.kube.workload_state import Flavor, WantedWorkload, admission_of, queue_fact
from rljob_operator.kube.workload_writes import (
    Create,
    Delete,
    GiveBack,
    Reprioritize,
    SetCondition,
    Standing,
    Update,
    Write,
    next_write,
)

_log = logging.getLogger(__name__)


MOST_WRITES = 4
"""In a turn: after an eviction quota is given back and the spec brought up to date; nothing needs more."""


@dataclass(frozen=True, slots=True)
class Priority:
    """Priority of a Workload."""

    group: str
    kind: str
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Brought:
    """Outcome of the writes of a turn."""

    refusals: tuple[Refusal, ...] = ()
    again: bool = False
    """Another client wrote first, or the job's status does not say yet what came of it: the next turn knows more."""
    problem: str = ""
    """Why the Workload cannot be written. Nothing announces that it is over."""


class JobWorkload:
    """One job's."""

    def __init__(self, api: Api, cache: Cache, key: JobKey, uid: str, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._cache = cache
        self._key = key
        self._uid = uid
        self._problem = ""
        """Why the Workload could not be written last."""
        self._flavors: dict[str, Flavor] = {}
        self._flavors_of = ""
        """The admission that they were read for."""

    @property
    def known(self) -> OwnedView | None:
        """As the cache has it; a foreign one is none."""
        view = self._cache.owned(self._key).get((WORKLOADS.kind, workload_name(self._key.name)))
        return view if view is not None and holder(view, self._key, self._uid) is ObjectHolder.JOB else None

    async def look(self, wanted: WantedWorkload, status: RLJobStatus) -> QueueFact:
        """Kueue's decision, with the flavors of the admission that the job is to start by."""
        known, problem, admission = self.known, self._problem, None
        runs = bool(status.roles) and not is_true(status, ConditionType.SUSPENDED)
        if known is not None and known.workload is not None and known.workload.is_true("Admitted"):
            try:
                admission = admission_of(known.workload, await self._read_flavors(known))
            except ApiRefused as error:
                problem = f"a ResourceFlavor of the admission cannot be read: {error.message}"
        return queue_fact(known, wanted, admission, runs=runs, problem=problem)

    async def bring(self, wanted: WantedWorkload, request: QueueRequest, standing: Standing) -> Brought:
        """Writes what is due, one thing after the other."""
        before, self._problem = self._problem, ""
        for _ in range(MOST_WRITES):
            write = next_write(self.known, wanted, standing)
            if write is None:
                return Brought(again=bool(before))
            try:
                await self._carry_out(write, wanted, request)
            except (ApiConflict, ApiNotFound):
                return Brought(again=True)
            except ApiRefused as error:
                refusal = Refusal(WORKLOADS.kind, workload_name(self._key.name), error)
                self._problem = str(refusal)
                again = refusal.passes or self._problem != before
                return Brought(() if refusal.passes else (refusal,), again, self._problem)
            if self._problem:
                return Brought(again=self._problem != before, problem=self._problem)
            if isinstance(write, Delete):
                break
        return Brought(again=True)

    async def withdraw(self) -> None:
        """Deletes the Workload of a job that has no queue any more."""
        if (known := self.known) is not None and not known.deleting:
            await self._delete(known)

    async def _carry_out(self, write: Write, wanted: WantedWorkload, request: QueueRequest) -> None:
        known = self.known
        match write:
            case Create():
                await self._create(wanted, request)
            case Update() if known is not None:
                await self._change(known, await self._body(wanted, request))
            case Reprioritize() if known is not None:
                body = await self._body(wanted, request)
                if body is not None:
                    fields = {name: body["spec"][name] for name in ("priority", "priorityClassRef")}
                    await self._change(known, {"spec": fields})
            case Delete() if known is not None:
                await self._delete(known)
            case GiveBack(reason, message, again) if known is not None:
                pending = ("QuotaReserved", False, "Pending", message)
                none = ("Admitted", False, "NoReservation", "The workload has no reservation")
                await self._set(known, ("Requeued", again, reason, message), pending, none, admission=None)
            case SetCondition(kind, status, reason, message) if known is not None:
                await self._set(known, (kind, status, reason, message))

    async def _create(self, wanted: WantedWorkload, request: QueueRequest) -> None:
        body = await self._body(wanted, request)
        if body is None:
            return
        try:
            self._put(await self._api.create(WORKLOADS, self._key.namespace, body))
        except ApiConflict:
            found = await read(self._api, self._key, WORKLOADS.kind, workload_name(self._key.name))
            if found is None or holder(found, self._key, self._uid) is ObjectHolder.PASSING:
                raise
            if holder(found, self._key, self._uid) is ObjectHolder.OTHER:
                self._problem = f"{foreign(found)} has the name of this job's Workload. Delete it, or rename the job"
                return
            await self._change(found, {"metadata": {"labels": body["metadata"]["labels"]}})
        _log.info("%s: made its Workload", self._key)

    async def _body(self, wanted: WantedWorkload, request: QueueRequest) -> Json | None:
        """The Workload with its priority; None, and a problem, where there is no such class."""
        try:
            priority = await self._priority(request)
        except ApiNotFound:
            kind, name = wanted.priority
            self._problem = f"there is no {kind} {name}. Make it, or name another one"
            return None
        spec: dict[str, Any] = {**wanted.manifest["spec"], "priorityClassRef": None, "priority": None}
        if priority is not None:
            spec["priorityClassRef"] = {"group": priority.group, "kind": priority.kind, "name": priority.name}
            spec["priority"] = priority.value
        return {**wanted.manifest, "spec": spec}

    async def _priority(self, request: QueueRequest) -> Priority | None:
        if request.workload_class:
            return await self._class(WORKLOAD_PRIORITY_CLASSES, request.workload_class)
        return await self._class(PRIORITY_CLASSES, request.pod_class) if request.pod_class else None

    async def _class(self, resource: Resource, name: str) -> Priority:
        found = await self._api.get(resource, None, name)
        return Priority(resource.api_version.partition("/")[0], resource.kind, name, found["value"])

    async def _read_flavors(self, known: OwnedView) -> Mapping[str, Flavor]:
        """Once for each admission: what becomes of a flavor later is not for pods that run."""
        view = known.workload
        assert view is not None, "it is admitted"
        made_of = f"{known.uid} {view.assignments}"
        if self._flavors_of != made_of:
            names = {name for each in view.assignments for name in each.flavors}
            self._flavors = {name: await self._flavor(name) for name in sorted(names)}
            self._flavors_of = made_of
        return self._flavors

    async def _flavor(self, name: str) -> Flavor:
        spec = (await self._api.get(RESOURCE_FLAVORS, None, name)).get("spec") or {}
        return Flavor(spec.get("nodeLabels") or {}, spec.get("tolerations") or ())

    async def _change(self, known: OwnedView, body: Json | None) -> None:
        if body is None:
            return
        metadata = {
            name: body["metadata"][name] for name in ("labels", "annotations") if name in body.get("metadata", {})
        }
        # By the version that was judged: once the quota is reserved, Kueue refuses the change.
        version = {"uid": known.uid, "resourceVersion": str(known.version)}
        patch = {"metadata": {**version, **metadata}, **({"spec": body["spec"]} if "spec" in body else {})}
        self._put(await self._api.merge(WORKLOADS, self._key.namespace, known.name, patch))

    async def _set(self, known: OwnedView, *conditions: tuple[str, bool, str, str], **fields: object) -> None:
        """Conditions and fields of the status, by the version that was read: Kueue writes there, too."""
        raw = await self._api.get(WORKLOADS, self._key.namespace, known.name)
        if raw["metadata"]["uid"] != known.uid:
            raise ApiConflict("get", 409, "Conflict", "another Workload has the name")
        status = {"conditions": with_conditions(raw, conditions, self._clock()), **fields}
        body = {"metadata": {"uid": known.uid, "resourceVersion": raw["metadata"]["resourceVersion"]}, "status": status}
        self._put(await self._api.merge(WORKLOADS, self._key.namespace, known.name, body, "status"))
        named = ", ".join(f"{kind}={status}" for kind, status, _, _ in conditions)
        _log.info("%s: its Workload has %s", self._key, named)

    async def _delete(self, known: OwnedView) -> None:
        options = {"preconditions": {"uid": known.uid}, "propagationPolicy": "Background"}
        await self._api.delete(WORKLOADS, self._key.namespace, known.name, options)
        _log.info("%s: deleted its Workload", self._key)

    def _put(self, raw: Json) -> None:
        self._cache.put_owned(self._key, view_owned(WORKLOADS.kind, raw), quietly=True)


def with_conditions(raw: Json, wanted: Sequence[tuple[str, bool, str, str]], now: float) -> list[Json]:
    """The conditions of a Workload with these set; a transition time changes only with the status."""
    known = {each["type"]: each for each in (raw.get("status") or {}).get("conditions") or ()}
    for kind, holds, reason, message in wanted:
        before, status = known.get(kind, {}), "True" if holds else "False"
        since = before.get("lastTransitionTime") if before.get("status") == status else None
        known[kind] = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message[:1024],
            "lastTransitionTime": since or timestamp(now),
            "observedGeneration": raw["metadata"].get("generation", 0),
        }
    return list(known.values())
