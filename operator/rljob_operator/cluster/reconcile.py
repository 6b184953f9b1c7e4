"""One turn of the operator for one job: observe -> decide -> persist -> apply -> act -> emit.

Called by the workers with a job's key, any number of times; the process may be killed between any two writes. `core`
decides, `build` makes the manifests; only the order is here. Imports nothing of kopf.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from rljob_api.cluster import COMPONENT_COORDINATOR, checkpoint_claim_name, secret_name
from rljob_api.spec import RLJob
from rljob_api.status import Condition, ConditionType, RLJobStatus
from rljob_api.times import timestamp
from rljob_operator.build import MissingApi, Owner, warnings
from rljob_operator.cluster.actions import ActionContext
from rljob_operator.cluster.coordinators import JobCoordinator, num_processes
from rljob_operator.cluster.job import JobMemory, OperatorContext, TurnContext, generation_of, templates
from rljob_operator.cluster.observe import JobSnapshot, observe
from rljob_operator.coordinator_client.link import CoordinatorError, CoordinatorRefused
from rljob_operator.core import Decision, DeleteJob, Event, RaiseEpoch, Reason, RefusedSpec, SetDesired, Stop, decide
from rljob_operator.core.conditions import find, is_true, terminal, with_condition
from rljob_operator.core.derived_status import out_of_sight
from rljob_operator.core.notices import retold
from rljob_operator.kube import checkpoint_claim
from rljob_operator.kube.accepted_spec import InvalidManifest, Unreadable, is_ours
from rljob_operator.kube.api import Json
from rljob_operator.kube.apply import ApplyOutcome, Refusal, carry_out, claim, difference
from rljob_operator.kube.blockers import BlockerReports, suspects
from rljob_operator.kube.errors import ApiRefused
from rljob_operator.kube.events import Events, record_of, remark, warning
from rljob_operator.kube.job_secrets import Absent, Held
from rljob_operator.kube.kinds import CLAIMS
from rljob_operator.kube.ownership import Foreign, earlier_pods_sentence, sentence
from rljob_operator.kube.status_writer import Overtaken
from rljob_operator.kube.views import JobKey, PodView
from rljob_operator.kube.work_queue import NextTurn, Urgency

TAKEN_SECONDS = 3.0
"""How often it is looked whether the name is free: without the job's label no watch tells of the object's end."""


RESTORED_MESSAGE = "the job's Secret was gone; it has been made again with the same content"


REFUSED_SECONDS = 10.0
"""How often it is asked whether it takes it now."""


RETRY_SECONDS = 0.2
"""After a refusal of the coordinator everything is observed and decided anew."""


REMAINS_SECONDS = 1.0
"""How often it is looked whether the garbage collector is done with an earlier job of the same name."""


_log = logging.getLogger(__name__)


class Reconciler:
    """Turns."""

    def __init__(self, world: OperatorContext) -> None:
        self._world = world
        self._events = Events(world.api, world.identity)
        self._memories: dict[JobKey, JobMemory] = {}
        self._untold: set[str] = set()
        """Uids of jobs whose last decisions an earlier operator may not have told."""

    async def turn(self, key: JobKey) -> NextTurn | None:
        """Brings one job on; answers when to look again unasked."""
        raw = self._world.cache.job(key)
        if raw is None or "deletionTimestamp" in raw["metadata"] or not is_ours(raw):
            await self._forget(key)
            return None
        memory = await self._memory(key, raw["metadata"]["uid"])
        status = memory.accepted.status(raw)
        try:
            if isinstance(status, Unreadable):
                await self._stop(key, raw, memory, status)
                return None
            case = await self._case(key, raw, memory, status)
            look = None if case is None else await self._bring_on(case)
            return _sooner(look, memory.rehearsal.look_again_at, memory.waits.look_again_at)
        except Overtaken:
            return NextTurn(time.time(), Urgency.ALARM)

    async def _memory(self, key: JobKey, uid: str) -> JobMemory:
        """What is known of the job; of an earlier one of its name, nothing."""
        known = self._memories.get(key)
        if known is None or known.uid != uid:
            await self._forget(key)
            known = self._memories[key] = JobMemory.of_new(key, uid, self._world)
            self._untold.add(uid)
        return known

    async def _forget(self, key: JobKey) -> None:
        """The job is gone, or somebody else's."""
        known = self._memories.pop(key, None)
        self._untold.discard(known.uid if known is not None else "")
        await self._world.coordinators.close(key)

    async def _case(self, key: JobKey, raw: Json, memory: JobMemory, status: RLJobStatus) -> TurnContext | None:
        """The job by its newest spec, or by the last one that was accepted; None, and it is said, if there is none."""
        generation = generation_of(raw)
        job = memory.accepted.job(raw)
        problems = job.problems if isinstance(job, InvalidManifest) else self._problems(key, raw, job, status)
        reason = Reason.INVALID_SPEC
        if not isinstance(job, InvalidManifest) and not problems:
            wanted = self._wanted(key, job, raw, status)
            problems, reason = await memory.rehearsal.refused(generation, wanted, status), Reason.OBJECT_REFUSED
            if not problems:
                return TurnContext(key, raw, job, memory.last_accepted.note(job, generation), None, status, memory)
        message, before = "\n".join(problems), await memory.last_accepted.read(status)
        if before is None or self._problems(key, raw, before[0], status):
            await self._refuse(key, raw, memory, status, reason.value, message)
            return None
        return TurnContext(key, raw, *before, RefusedSpec(generation, message, reason), status, memory)

    def _problems(self, key: JobKey, raw: Json, job: RLJob, status: RLJobStatus) -> tuple[str, ...]:
        """What a cluster cannot do of it."""
        try:
            self._wanted(key, job, raw, status)
        except ValueError as error:
            if isinstance(error, MissingApi):
                self._world.missed.set()
            return tuple(str(error).splitlines())
        except Exception as error:
            # A defect of the build, which is the same in every turn: the job would wait without a cause.
            _log.exception("%s: its objects cannot be made", key)
            return (
                f"the operator cannot make this job's objects: {type(error).__name__}: {error}. This is a fault of the"
                " operator, whose log has the traceback: report it, and leave out what is special in"
                " roles.*.template and infrastructure.template",
            )
        return ()

    async def _bring_on(self, case: TurnContext) -> NextTurn | None:
        key, memory = case.key, case.memory
        current = self._wanted(key, case.job, case.raw, case.status)
        pods = self._world.cache.pods(key)
        held = await self._secret(case, pods)
        if held is None:
            return NextTurn(time.time() + REFUSED_SECONDS)
        claimed = await self._claim(case, current, held)
        if claimed.taken:
            # Whoever has the name of the coordinator's Service is not told the job's token.
            await self._world.coordinators.close(key)
            status, limit = case.status, case.job.spec.restart_policy.heartbeat_timeout_seconds
            silence = memory.contact.not_asked(Reason.NAME_TAKEN, "the coordinator is not asked: its name may be taken")
            said = out_of_sight(status, silence, limit, time.time())
            await self._refuse(
                key, case.raw, memory, status, Reason.NAME_TAKEN.value, sentence(claimed.taken, key), said
            )
            return NextTurn(time.time() + TAKEN_SECONDS)
        if held is Absent.REMAINS:
            await memory.actions.bury(pods)
            await self._wait(case, Reason.EARLIER_JOB, earlier_pods_sentence(pods))
            return NextTurn(time.time() + REMAINS_SECONDS)
        if isinstance(held, Held) and held.is_restored:
            await self._warn(key, case.raw, Reason.SECRET_RESTORED.value, RESTORED_MESSAGE)
        return await self._go_on(case, current, held, claimed)

    async def _secret(self, case: TurnContext, pods: Sequence[PodView]) -> Held | Absent | Foreign | None:
        """The job's Secret; None where the API server does not take it, which the job then says."""
        try:
            return await case.memory.secret.of(case.job, case.owner, pods, has_begun=case.has_begun)
        except ApiRefused as error:
            refusal = Refusal("Secret", secret_name(case.key.name), error)
            if refusal.passes or case.has_begun:
                raise
            await self._emit_refused(case.key, case.raw, [refusal])
            await self._wait(case, Reason.OBJECT_REFUSED, str(refusal))
            return None

    def _wanted(self, key: JobKey, job: RLJob, raw: Json, status: RLJobStatus) -> Sequence[Json]:
        """All objects but the Secret. ValueError with sentences for what cannot be built."""
        uid = raw["metadata"]["uid"]
        there = checkpoint_claim.found(job.spec, key, uid, self._world.cache.owned(key))
        return self._memories[key].manifests.of(job, Owner(namespace=key.namespace, uid=uid), status, there)

    async def _claim(self, case: TurnContext, current: Sequence[Json], held: Held | Absent | Foreign) -> ApplyOutcome:
        """Makes the names of the job's objects its own, and says which cannot be. A job that is over asks for none."""
        if terminal(case.status) is not None:
            return ApplyOutcome()
        key, pods = case.key, self._world.cache.pods(case.key)
        delta = difference(current, self._world.cache.owned(key), key, case.owner.uid)
        if isinstance(held, Held) or held is Absent.LOST:
            case.memory.remains.are_gone()
            api, cache = self._world.api, self._world.cache
            refused = case.memory.refused
            return await claim(api, cache, key, case.owner.uid, delta, refused, has_begun=case.has_begun)
        stranded = [] if case.has_begun else await case.memory.remains.stranded(pods)
        return ApplyOutcome(taken=(*delta.taken, *([held] if isinstance(held, Foreign) else []), *stranded))

    async def _go_on(
        self, case: TurnContext, current: Sequence[Json], held: Held | Absent | Foreign, claimed: ApplyOutcome
    ) -> NextTurn:
        """Observes, decides, persists, and does what follows."""
        seen_at, key, memory, cache = time.monotonic(), case.key, case.memory, self._world.cache
        # What may take long comes first: what is decided on is to be as new as it can be.
        heard = await self._heard(case, cache.pods(key))
        volume = await memory.claim.grow(case.owner.uid, current)
        coordinator = await self._coordinator(case, held)
        seen = await coordinator.status() if coordinator is not None else None
        pods, digests = cache.pods(key), templates(current, cache.owned(key))
        revision, is_lost = memory.accepted.revision(case.job), held is Absent.LOST
        silence = memory.contact.silence()
        kept = checkpoint_claim.kept(key, case.owner.uid, cache.owned(key), current)
        sight = JobSnapshot(
            key=key,
            job=case.job,
            revision=revision,
            accepted=case.accepted,
            refusal=case.refusal,
            status=case.status,
            pods=pods,
            templates=digests,
            coordinator=seen,
            silence=silence,
            secret_is_lost=is_lost,
            heard=heard,
            obstacles=memory.hindrances.obstacles(claimed.refusals),
            kept=kept,
            volume=volume,
        )
        now = time.time()
        observed, members = observe(sight, memory.ends, memory.startups)
        decision = decide(observed, now)
        early = await memory.status.write(case.raw, case.status, decision.status)
        memory.restart_clock.persisted(decision.events, seen_at)
        told: list[Event] = []
        try:
            outcome = await self._apply(case, decision, claimed)
            if outcome.taken and terminal(decision.status) is None:  # since the names were claimed
                memory.hindrances.applied(outcome)
                return NextTurn(now + RETRY_SECONDS, Urgency.ALARM)
            unnoted = await self._note_record(case, decision)
            outcome = replace(outcome, refusals=(*outcome.refusals, *unnoted))
            memory.hindrances.applied(outcome)
            scene = ActionContext(
                key, case.owner.uid, case.job, decision.status, sight.pods, members, coordinator, told
            )
            is_refused = await self._act(_kept(decision) if unnoted else decision, scene, memory)
            await memory.actions.bury(scene.pods)
        finally:
            await self._emit(case, current, decision)
            await self._emit_wait(case, decision.status)
            await self._tell(
                case, [*(coordinator.take_told(decision.status) if coordinator is not None else []), *told]
            )
        soonest = [decision.look_again_at]
        if outcome.refusals:
            await self._emit_refused(key, case.raw, outcome.refusals)
            soonest.append(now + REFUSED_SECONDS)
        if outcome.waits:
            soonest.append(now + REMAINS_SECONDS)
        if is_refused:
            return NextTurn(now + RETRY_SECONDS, Urgency.ALARM)
        if coordinator is not None and seen is None and not _stops(decision):
            soonest.append(now + coordinator.ask_again_seconds)
        if early is not None:
            soonest.append(now + early)
        if volume is not None and volume.refusal:
            soonest.append(now + checkpoint_claim.RETRY_SECONDS)
        return NextTurn(min(soonest))

    async def _heard(self, case: TurnContext, pods: Sequence[PodView]) -> BlockerReports:
        """What is said of objects that do not come to run, where they are waited for."""
        owned, status = self._world.cache.owned(case.key), case.status
        if terminal(status) is not None or is_true(status, ConditionType.SUSPENDED):
            return BlockerReports()
        return BlockerReports(owned, await case.memory.cluster_events.about(suspects(pods, owned)))

    async def _note_record(self, case: TurnContext, decision: Decision) -> list[Refusal]:
        """Notes on the claim how far the job came; a refusal of that keeps nothing but its deletion from being done."""
        try:
            await case.memory.claim.note_record(case.owner.uid, decision.status)
        except ApiRefused as error:
            refusal = Refusal(CLAIMS.kind, checkpoint_claim_name(case.key.name), error)
            if refusal.passes:
                raise
            return [refusal]
        return []

    async def _apply(self, case: TurnContext, decision: Decision, claimed: ApplyOutcome) -> ApplyOutcome:
        """Brings the objects to what was decided, unless the job's pods are just being told that it is over."""
        if _is_ending(decision):
            return ApplyOutcome()
        api, cache, key, uid = self._world.api, self._world.cache, case.key, case.owner.uid
        wanted = self._wanted(case.key, case.job, case.raw, decision.status)
        delta = difference(wanted, cache.owned(key), key, uid)
        return await carry_out(api, cache, key, uid, delta, case.memory.refused, claimed)

    async def _coordinator(self, case: TurnContext, held: Held | Absent | Foreign) -> JobCoordinator | None:
        """The coordinator, if there is a pod of it that takes requests. Nobody listens where there is none."""
        key, contact = case.key, case.memory.contact
        if not isinstance(held, Held):
            contact.not_asked(Reason.SECRET_LOST, "nobody knows the token any more with which the coordinator is asked")
            return None
        pods = [pod for pod in self._world.cache.pods(key) if pod.component == COMPONENT_COORDINATOR]
        if not any(pod.ready and not pod.deleting for pod in pods):
            await self._world.coordinators.close(key)
            contact.nobody_there(pods)
            return None
        return await self._world.coordinators.of(key, held.token, contact, num_processes(case.job, case.status))

    async def _act(self, decision: Decision, scene: ActionContext, memory: JobMemory) -> bool:
        """In order; True if the coordinator refused or did not answer, which ended it."""
        try:
            for action in decision.actions:
                await memory.actions.carry_out(action, scene)
        except CoordinatorError as error:
            _log.info("%s: %s", scene.key, error)
            if isinstance(error, CoordinatorRefused):
                memory.hindrances.refused(str(error))
            return True
        memory.hindrances.ordered()
        if any(isinstance(action, SetDesired | RaiseEpoch) for action in decision.actions):
            memory.restart_clock.ordered()
        if _stops(decision):
            await self._world.coordinators.close(scene.key)
        return False

    async def _emit(self, case: TurnContext, current: Sequence[Json], decision: Decision) -> None:
        key, raw = case.key, case.raw
        for event in decision.events:
            scope = event.scope.value if event.scope is not None else ""
            _log.info("%s: %s: %s", key, " ".join(filter(None, (event.reason.value, scope))), event.message)
            self._world.metrics.decisions.labels(event.reason.value, scope).inc()
            await self._events.emit(key, raw, record_of(event), event.once)
        if terminal(decision.status) is None:
            for sentence in case.memory.manifests.newly_overridden(case.job, current):
                await self._events.emit(key, raw, remark(Reason.OVERRIDDEN.value, sentence), once=sentence)
        if any(event.reason is Reason.ACCEPTED for event in decision.events):
            for sentence in warnings(case.job):
                await self._events.emit(key, raw, warning(Reason.DURABILITY.value, sentence))

    async def _tell(self, case: TurnContext, told: Sequence[Event]) -> None:
        """What was not decided in this turn; in the first one also what an operator before may not have told."""
        if case.memory.uid in self._untold:
            self._untold.discard(case.memory.uid)
            told = [*retold(case.status, time.time()), *told]
        for event in told:
            _log.info("%s: %s: %s", case.key, event.reason.value, event.message)
            await self._events.emit(case.key, case.raw, record_of(event), event.once)

    async def _emit_wait(self, case: TurnContext, status: RLJobStatus) -> None:
        record = case.memory.waits.of(status)
        if record is not None:
            await self._events.emit(case.key, case.raw, record)

    async def _emit_refused(self, key: JobKey, raw: Json, refusals: Sequence[Refusal]) -> None:
        """Those that somebody has to do something about. Raises where the next turn may fare better all the same."""
        for refusal in refusals:
            if not refusal.passes:
                await self._warn(
                    key, raw, Reason.OBJECT_REFUSED.value, f"{refusal}; it is asked for again, and the rest goes on"
                )
        for refusal in refusals:
            if refusal.passes:
                raise refusal.error

    async def _refuse(
        self,
        key: JobKey,
        raw: Json,
        memory: JobMemory,
        status: RLJobStatus,
        reason: str,
        message: str,
        said: RLJobStatus | None = None,
    ) -> None:
        """Says what keeps the job from being taken care of; what runs already is left as it is.

        `said` is what the status says beside that, where it is something else than it says now.
        """
        new = with_condition(
            (said or status).model_copy(update={"observed_generation": generation_of(raw), "reason": reason}),
            ConditionType.ACCEPTED,
            time.time(),
            true=False,
            reason=reason,
            message=message,
        )
        if new == status:
            return
        is_news = find(status, ConditionType.ACCEPTED) != find(new, ConditionType.ACCEPTED)
        await memory.status.write(raw, status, new)
        if is_news:
            await self._warn(key, raw, reason, message)

    async def _wait(self, case: TurnContext, reason: Reason, message: str) -> None:
        """Says what a job waits for before anything of it is decided."""
        status, now = case.status, time.time()
        status = with_condition(status, ConditionType.READY, now, true=False, reason=reason.value, message=message)
        new = status.model_copy(update={"observed_generation": generation_of(case.raw), "reason": reason.value})
        if new != case.status:
            await case.memory.status.write(case.raw, case.status, new)
        await self._emit_wait(case, new)

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
            reason=Reason.STATUS_UNREADABLE.value,
            message=message,
            last_transition_time=timestamp(time.time()),
            observed_generation=generation_of(raw),
        )
        if await memory.status.write_condition(raw, condition):
            await self._warn(key, raw, Reason.STATUS_UNREADABLE.value, message)

    async def _warn(self, key: JobKey, raw: Json, reason: str, message: str) -> None:
        """Of something that is no decision of the core."""
        _log.warning("%s: %s: %s", key, reason, message)
        self._world.metrics.decisions.labels(reason, "").inc()
        await self._events.emit(key, raw, warning(reason, message))


def _sooner(look: NextTurn | None, *times: float | None) -> NextTurn | None:
    """The same look, or an earlier one."""
    due = min((each for each in times if each is not None), default=None)
    if due is None or (look is not None and look.at <= due):
        return look
    return NextTurn(due)


def _stops(decision: Decision) -> bool:
    """Whether nothing is asked of the coordinator any more."""
    return any(isinstance(action, Stop) for action in decision.actions)


def _kept(decision: Decision) -> Decision:
    """The same without the deletion of the job, of which nothing would be known then."""
    return replace(decision, actions=tuple(each for each in decision.actions if not isinstance(each, DeleteJob)))


def _is_ending(decision: Decision) -> bool:
    """Whether the job is over and its pods are still being told so: they stay until the core says stop."""
    over = any(isinstance(action, Stop | DeleteJob) for action in decision.actions)
    return terminal(decision.status) is not None and not over
