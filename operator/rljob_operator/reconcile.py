"""A turn of the operator: observe -> decide -> persist -> apply -> act -> emit, for one job.

Called by the workers with a job's key, at any time and any number of times; it may be killed between any two writes.
What is decided is `core`'s, what is to exist is `build`'s; here is only the order.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.cluster import COMPONENT_COORDINATOR
from rljob_api.spec import RLJob
from rljob_api.status import Condition, ConditionType, RLJobStatus
from rljob_api.times import timestamp
from rljob_operator.adapters.accept import Refused, Unreadable, is_ours
from rljob_operator.adapters.actions import Scene
from rljob_operator.adapters.api import Json
from rljob_operator.adapters.apply import Outcome, Refusal, carry_out, difference
from rljob_operator.adapters.claims import claim
from rljob_operator.adapters.coordinators import Coordinator
from rljob_operator.adapters.event_records import record_of, warning
from rljob_operator.adapters.events import Events
from rljob_operator.adapters.job_memory import JobMemory, World
from rljob_operator.adapters.job_secrets import Absent, Held
from rljob_operator.adapters.manifests_memo import templates
from rljob_operator.adapters.observe import Sight, observe
from rljob_operator.adapters.ownership import Foreign, sentence
from rljob_operator.adapters.status_writer import Overtaken
from rljob_operator.adapters.views import JobKey
from rljob_operator.adapters.work_queue import Urgency
from rljob_operator.adapters.workers import Look
from rljob_operator.build import Owner, warnings
from rljob_operator.coordinator_link import CoordinatorError
from rljob_operator.core import Decision, DeleteJob, RaiseEpoch, Reason, SetDesired, Stop, decide
from rljob_operator.core.conditions import terminal, with_condition

INVALID_SPEC = "InvalidSpec"
"""Reason of Accepted=False: the API server took the spec, but it cannot work."""

NAME_TAKEN = "NameTaken"
"""Reason of Accepted=False: an object that is not the job's has the name of one, or its pods' labels."""

TAKEN_SECONDS = 3.0
"""How often it is looked whether the name is free: without the job's label no watch tells of the object's end."""

STATUS_UNREADABLE = "StatusUnreadable"
"""Reason of Accepted=False: what the job has done so far is not understood, so nothing is begun."""

RESTORED = "SecretRestored"
RESTORED_MESSAGE = "the job's Secret was gone; it has been made again with the same content"

REFUSED = "ObjectRefused"
"""The API server does not take an object of the job: a quota, an admission webhook."""

REFUSED_SECONDS = 10.0
"""How often it is asked whether it takes it now."""

RETRY_SECONDS = 0.2
"""After a refusal of the coordinator everything is observed and decided anew."""

REMAINS_SECONDS = 1.0
"""How often it is looked whether the garbage collector is done with an earlier job of the same name."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Case:
    """What a turn begins with: the job as the API server has it."""

    key: JobKey
    raw: Json
    job: RLJob
    status: RLJobStatus
    """As last persisted."""
    memory: JobMemory

    @property
    def owner(self) -> Owner:
        """Who the objects belong to."""
        return Owner(namespace=self.key.namespace, uid=self.raw["metadata"]["uid"])

    @property
    def generation(self) -> int:
        """Of the spec."""
        generation: int = self.raw["metadata"].get("generation", 1)
        return generation

    @property
    def has_begun(self) -> bool:
        """Whether pods may have been made for it."""
        return self.status.restart.epoch > 0


class Reconciler:
    """Turns."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._events = Events(world.api, world.identity)
        self._memories: dict[JobKey, JobMemory] = {}

    async def turn(self, key: JobKey) -> Look | None:
        """Brings one job on; answers when to look again unasked."""
        raw = self._world.cache.job(key)
        if raw is None or "deletionTimestamp" in raw["metadata"] or not is_ours(raw):
            await self._forget(key)
            return None
        memory = await self._memory(key, raw["metadata"]["uid"])
        job, status = memory.accepted.job(raw), memory.accepted.status(raw)
        try:
            if isinstance(status, Unreadable):
                await self._stop(key, raw, memory, status)
                return None
            if isinstance(job, Refused):
                await self._refuse(key, raw, memory, status, INVALID_SPEC, "\n".join(job.problems))
                return None
            return await self._bring_on(Case(key, raw, job, status, memory))
        except Overtaken:
            return Look(time.time(), Urgency.ALARM)

    async def _memory(self, key: JobKey, uid: str) -> JobMemory:
        """What is known of the job; of an earlier one of its name, nothing."""
        known = self._memories.get(key)
        if known is None or known.uid != uid:
            await self._forget(key)
            known = self._memories[key] = JobMemory.of_new(key, uid, self._world)
        return known

    async def _forget(self, key: JobKey) -> None:
        """The job is gone, or somebody else's."""
        self._memories.pop(key, None)
        await self._world.coordinators.close(key)

    async def _bring_on(self, case: Case) -> Look | None:
        key, memory = case.key, case.memory
        try:
            current = memory.manifests.of(case.job, case.owner, case.generation, case.status)
        except ValueError as error:
            await self._refuse(key, case.raw, memory, case.status, INVALID_SPEC, str(error))
            return None
        pods = self._world.cache.pods(key)
        held = await memory.secret.of(case.job, case.owner, pods, has_begun=case.has_begun)
        claimed = await self._claim(case, current, held)
        if claimed.taken:
            # Whoever has the name of the coordinator's Service is not told the job's token.
            await self._world.coordinators.close(key)
            await self._refuse(key, case.raw, memory, case.status, NAME_TAKEN, sentence(claimed.taken, key))
            return Look(time.time() + TAKEN_SECONDS)
        if held is Absent.REMAINS:
            await memory.actions.bury(pods)
            return Look(time.time() + REMAINS_SECONDS)
        if isinstance(held, Held) and held.is_restored:
            await self._warn(key, case.raw, RESTORED, RESTORED_MESSAGE)
        return await self._go_on(case, current, held, claimed)

    async def _claim(self, case: Case, current: Sequence[Json], held: Held | Absent | Foreign) -> Outcome:
        """Makes the names of the job's objects its own, and says which cannot be. A job that is over asks for none."""
        if terminal(case.status) is not None:
            return Outcome()
        key, pods = case.key, self._world.cache.pods(case.key)
        delta = difference(current, self._world.cache.owned(key), key, case.owner.uid)
        if isinstance(held, Held) or held is Absent.LOST:
            case.memory.remains.are_gone()
            api, cache = self._world.api, self._world.cache
            return await claim(api, cache, key, case.owner.uid, delta, has_begun=case.has_begun)
        stranded = [] if case.has_begun else await case.memory.remains.stranded(pods)
        return Outcome(taken=(*delta.taken, *([held] if isinstance(held, Foreign) else []), *stranded))

    async def _go_on(
        self, case: Case, current: Sequence[Json], held: Held | Absent | Foreign, claimed: Outcome
    ) -> Look:
        """Observes, decides, persists, and does what follows."""
        seen_at, key, memory, cache = time.monotonic(), case.key, case.memory, self._world.cache
        coordinator = await self._coordinator(key, held.token) if isinstance(held, Held) else None
        seen = await coordinator.status() if coordinator is not None else None
        pods, digests = cache.pods(key), templates(current, cache.owned(key))
        revision, is_lost = memory.accepted.revision(case.job), held is Absent.LOST
        sight = Sight(key, case.job, revision, case.generation, case.status, pods, digests, seen, is_lost)
        now = time.time()
        observed, members = observe(sight, memory.ends, memory.startups)
        decision = decide(observed, now)
        early = await memory.status.write(case.raw, case.status, decision.status)
        memory.restart_clock.persisted(decision.events, seen_at)
        try:
            outcome = await self._apply(case, decision, claimed)
            if outcome.taken and terminal(decision.status) is None:  # since the names were claimed
                return Look(now + RETRY_SECONDS, Urgency.ALARM)
            scene = Scene(key, case.owner.uid, case.job, decision.status, sight.pods, members, coordinator)
            is_refused = await self._act(decision, scene, memory)
            await memory.actions.bury(scene.pods)
        finally:
            await self._emit(key, case.raw, case.job, decision)
        soonest = [decision.look_again_at]
        if outcome.refusals:
            await self._emit_refused(key, case.raw, outcome.refusals)
            soonest.append(now + REFUSED_SECONDS)
        if outcome.waits:
            soonest.append(now + REMAINS_SECONDS)
        if is_refused:
            return Look(now + RETRY_SECONDS, Urgency.ALARM)
        if coordinator is not None and seen is None and not _stops(decision):
            soonest.append(now + coordinator.ask_again_seconds)
        if early is not None:
            soonest.append(now + early)
        return Look(min(soonest))

    async def _apply(self, case: Case, decision: Decision, claimed: Outcome) -> Outcome:
        """Brings the objects to what was decided, unless the job's pods are just being told that it is over."""
        if _is_ending(decision):
            return Outcome()
        api, cache, key, uid = self._world.api, self._world.cache, case.key, case.owner.uid
        wanted = case.memory.manifests.of(case.job, case.owner, case.generation, decision.status)
        return await carry_out(api, cache, key, uid, difference(wanted, cache.owned(key), key, uid), claimed)

    async def _coordinator(self, key: JobKey, token: str) -> Coordinator | None:
        """The coordinator, if there is a pod of it that takes requests. Nobody listens where there is none."""
        pods = self._world.cache.pods(key)
        if not any(pod.component == COMPONENT_COORDINATOR and pod.ready and not pod.deleting for pod in pods):
            await self._world.coordinators.close(key)
            return None
        return await self._world.coordinators.of(key, token)

    async def _act(self, decision: Decision, scene: Scene, memory: JobMemory) -> bool:
        """In order; True if the coordinator refused or did not answer, which ended it."""
        try:
            for action in decision.actions:
                await memory.actions.carry_out(action, scene)
        except CoordinatorError as error:
            _log.info("%s: %s", scene.key, error)
            return True
        if any(isinstance(action, SetDesired | RaiseEpoch) for action in decision.actions):
            memory.restart_clock.ordered()
        if _stops(decision):
            await self._world.coordinators.close(scene.key)
        return False

    async def _emit(self, key: JobKey, raw: Json, job: RLJob, decision: Decision) -> None:
        for event in decision.events:
            scope = event.scope.value if event.scope is not None else ""
            _log.info("%s: %s: %s", key, " ".join(filter(None, (event.reason.value, scope))), event.message)
            self._world.metrics.decisions.labels(event.reason.value, scope).inc()
            await self._events.emit(key, raw, record_of(event))
        if any(event.reason is Reason.ACCEPTED for event in decision.events):
            for sentence in warnings(job):
                await self._events.emit(key, raw, warning("Durability", sentence))

    async def _emit_refused(self, key: JobKey, raw: Json, refusals: Sequence[Refusal]) -> None:
        """Those that somebody has to do something about. Raises where the next turn may fare better all the same."""
        for refusal in refusals:
            if not refusal.passes:
                await self._warn(key, raw, REFUSED, f"{refusal}; it is asked for again, and the rest goes on")
        for refusal in refusals:
            if refusal.passes:
                raise refusal.error

    async def _refuse(
        self, key: JobKey, raw: Json, memory: JobMemory, status: RLJobStatus, reason: str, message: str
    ) -> None:
        """Says what keeps the job from being taken care of; what runs already is left as it is."""
        generation: int = raw["metadata"].get("generation", 1)
        new = with_condition(
            status.model_copy(update={"observed_generation": generation, "reason": reason}),
            ConditionType.ACCEPTED,
            time.time(),
            true=False,
            reason=reason,
            message=message,
        )
        if new == status:
            return
        await memory.status.write(raw, status, new)
        await self._warn(key, raw, reason, message)

    async def _stop(self, key: JobKey, raw: Json, memory: JobMemory, status: Unreadable) -> None:
        """Says that nothing is done for a job whose status cannot be read. What runs already is left as it is."""
        message = (
            f"the status is not one that this operator knows: {status.problem}; nothing is begun or restarted for this"
            " job. Run the operator's version that wrote it, or mend the status; if its progress may be lost, delete"
            " the job and apply it again"
        )
        condition = Condition(
            type=ConditionType.ACCEPTED,
            status="False",
            reason=STATUS_UNREADABLE,
            message=message,
            last_transition_time=timestamp(time.time()),
            observed_generation=raw["metadata"].get("generation", 1),
        )
        if await memory.status.write_condition(raw, condition):
            await self._warn(key, raw, STATUS_UNREADABLE, message)

    async def _warn(self, key: JobKey, raw: Json, reason: str, message: str) -> None:
        """Of something that is no decision of the core."""
        _log.warning("%s: %s: %s", key, reason, message)
        self._world.metrics.decisions.labels(reason, "").inc()
        await self._events.emit(key, raw, warning(reason, message))


def _stops(decision: Decision) -> bool:
    """Whether nothing is asked of the coordinator any more."""
    return any(isinstance(action, Stop) for action in decision.actions)


def _is_ending(decision: Decision) -> bool:
    """Whether the job is over and its pods are still being told so: they stay until the core says stop."""
    over = any(isinstance(action, Stop | DeleteJob) for action in decision.actions)
    return terminal(decision.status) is not None and not over


def phase_of(raw: Json) -> str:
    """The phase of a job, for counting; one that nobody has written yet is Pending."""
    phase: str = raw["status"].get("phase", "Pending")
    return phase
