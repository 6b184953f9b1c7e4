"""One turn of the operator for one job: observe -> decide -> persist -> apply -> act -> emit.

Called by the workers with a job's key, any number of times; the process may be killed between any two writes. `core`
decides, `build` makes the manifests; only the order is here. Imports nothing of kopf.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rljob_api.cluster import COMPONENT_COORDINATOR, checkpoint_claim_name, secret_name
from rljob_api.spec import RLJob
from rljob_api.spec_size import MAX_SPEC_BYTES
from rljob_api.status import RLJobStatus
from rljob_operator.build import FoundClaims, MissingApi, Owner
from rljob_operator.cluster.actions import ActionContext
from rljob_operator.cluster.builds import RetainedBuilds, cost_of
from rljob_operator.cluster.coordinators import JobCoordinator, num_processes
from rljob_operator.cluster.deletion import delete_with_pods, finalizers_of
from rljob_operator.cluster.job import JobMemory, OperatorContext, TurnContext, templates
from rljob_operator.cluster.observe import observe
from rljob_operator.cluster.report import generation_of, labels_of
from rljob_operator.cluster.surplus import surplus
from rljob_operator.coordinator_client.link import CoordinatorError, CoordinatorRefused
from rljob_operator.core import Decision, DeleteJob, Event, RaiseEpoch, Reason, RefusedSpec, SetDesired, Stop, decide
from rljob_operator.core.conditions import rests, terminal
from rljob_operator.core.deletion import leaves_everything
from rljob_operator.core.derived_status import with_lost_contact
from rljob_operator.kube import checkpoint_claim
from rljob_operator.kube.accepted_spec import InvalidManifest, Unreadable, is_ours
from rljob_operator.kube.api import Json
from rljob_operator.kube.apply import ApplyOutcome, Refusal
from rljob_operator.kube.blockers import BlockerReports, suspects
from rljob_operator.kube.errors import ApiRefused
from rljob_operator.kube.events import Events
from rljob_operator.kube.job_secrets import Absent, Held
from rljob_operator.kube.job_workload import Brought
from rljob_operator.kube.kinds import CLAIMS
from rljob_operator.kube.ownership import Foreign, control_claimed_by, earlier_pods_sentence, sentence
from rljob_operator.kube.status_writer import Overtaken
from rljob_operator.kube.views import JobKey, PodView
from rljob_operator.kube.work_queue import NextTurn, Urgency

TAKEN_SECONDS = 3.0
"""How often the name is checked: without the job's label no watch reports that the object has gone."""


RESTORED_MESSAGE = "the job's Secret was gone; it has been made again with the same content"


REFUSED_SECONDS = 10.0
"""How often a refused object is submitted again."""


RETRY_SECONDS = 0.2
"""After a refusal of the coordinator everything is observed and decided again."""


EARLIER_JOB_SECONDS = 1.0
"""How often objects of an earlier job of the same name are checked, which the garbage collector deletes."""


_log = logging.getLogger(__name__)


class Reconciler:
    """Turns."""

    def __init__(self, world: OperatorContext) -> None:
        self._world = world
        self._events = Events(world.api, world.identity, world.clock)
        self._memories: dict[JobKey, JobMemory] = {}
        self._retained = RetainedBuilds()

    async def turn(self, key: JobKey) -> NextTurn | None:
        """Brings one job on; answers when the next turn is due unasked."""
        raw = self._world.cache.job(key)
        if raw is None or not is_ours(raw) or _is_left(raw):
            await self.forget(key)
            return None
        memory = await self._memory(key, raw["metadata"]["uid"])
        try:
            if "deletionTimestamp" in raw["metadata"]:
                await self._world.coordinators.close(key)
                return await delete_with_pods(key, raw, memory, self._world.cache, self._world.clock())
            return await self._turn(key, raw, memory)
        except Overtaken:
            return NextTurn(0.0, Urgency.ALARM)
        finally:
            self._keep_builds(key, memory, self._world.cache.job(key) or raw)

    async def _turn(self, key: JobKey, raw: Json, memory: JobMemory) -> NextTurn | None:
        status = memory.accepted.status(raw)
        if isinstance(status, Unreadable):
            await memory.report.unreadable(raw, status)
            return None
        beyond = surplus(key, self._world.cache.jobs(), self._world.options.jobs_per_namespace)
        if beyond is not None:
            await memory.report.refuse(raw, status, Reason.TOO_MANY_JOBS, beyond.sentence)
            return NextTurn(beyond.again_seconds)
        context = await self._turn_of(key, raw, memory, status)
        next_turn = None if context is None else await self._bring_on(context)
        return _sooner(next_turn, memory.rehearsal.due_in, memory.report.due_in)

    def _keep_builds(self, key: JobKey, memory: JobMemory, raw: Json) -> None:
        """A job at rest keeps nothing of what its turn has built; of the others those that had a turn last do."""
        status = memory.accepted.status(raw)
        if isinstance(status, Unreadable) or rests(status):
            self._retained.forgotten(key)
            memory.forget_builds()
            return
        num_bytes = min(raw["spec"].num_bytes, MAX_SPEC_BYTES)  # a larger one is not built, and those before may be
        for other in self._retained.used(key, cost_of(num_bytes) if memory.retains_builds else 0):
            if other in self._memories:
                self._memories[other].forget_builds()

    async def _memory(self, key: JobKey, uid: str) -> JobMemory:
        """What is known of the job; of an earlier one of its name, nothing."""
        known = self._memories.get(key)
        if known is None or known.uid != uid:
            await self.forget(key)
            known = self._memories[key] = JobMemory.of_new(key, uid, self._world, self._events)
        return known

    async def forget(self, key: JobKey) -> None:
        """The job is gone, or another operator takes care of it."""
        self._memories.pop(key, None)
        self._retained.forgotten(key)
        await self._world.coordinators.close(key)

    async def _turn_of(self, key: JobKey, raw: Json, memory: JobMemory, status: RLJobStatus) -> TurnContext | None:
        """The job by its newest spec, or by the last one that was accepted. None, if there is none, is reported."""
        generation = generation_of(raw)
        job = await self._job(memory, raw)
        problems = job.problems if isinstance(job, InvalidManifest) else await self._problems(key, job, raw, status)
        reason = Reason.INVALID_SPEC
        if not isinstance(job, InvalidManifest) and not problems:
            wanted = await self._wanted(key, job, raw, status)
            problems, reason = await memory.rehearsal.refused(generation, wanted, status), Reason.OBJECT_REFUSED
            if not problems:
                return TurnContext(key, raw, job, memory.accepted.note(job, generation), None, status, memory)
        message, before = "\n".join(problems), await memory.accepted.last(status)
        if before is None or await self._problems(key, before[0], raw, status, was_accepted=True):
            await memory.report.refuse(raw, status, reason, message)
            return None
        return TurnContext(key, raw, *before, RefusedSpec(generation, message, reason), status, memory)

    async def _job(self, memory: JobMemory, raw: Json) -> RLJob | InvalidManifest:
        known = memory.accepted.known(raw)
        if known is not None:
            return known
        return await self._world.builds.run(raw["spec"].num_bytes, partial(memory.accepted.job, raw))

    async def _problems(
        self, key: JobKey, job: RLJob, raw: Json, status: RLJobStatus, *, was_accepted: bool = False
    ) -> tuple[str, ...]:
        """What a cluster cannot do of it."""
        try:
            await self._wanted(key, job, raw, status, was_accepted=was_accepted)
            if status.restart.epoch == 0:
                self._memories[key].queue.check(job, labels_of(raw))
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

    async def _bring_on(self, turn: TurnContext) -> NextTurn | None:
        key, memory, report = turn.key, turn.memory, turn.memory.report
        current = await self._wanted_of(turn, turn.status)
        pods = self._world.cache.pods(key)
        held = await self._secret(turn, pods)
        if held is None:
            return NextTurn(REFUSED_SECONDS)
        claimed = await self._claim(turn, current, held)
        if claimed.taken:
            # A foreign object that has the name of the coordinator's Service never gets the job's token.
            await self._world.coordinators.close(key)
            limit = turn.job.spec.restart_policy.heartbeat_timeout_seconds
            silence = memory.contact.not_asked(Reason.NAME_TAKEN, "the coordinator is not asked: its name may be taken")
            other = with_lost_contact(turn.status, silence, limit, self._world.clock())
            await report.refuse(turn.raw, turn.status, Reason.NAME_TAKEN, sentence(claimed.taken, key), other)
            return NextTurn(TAKEN_SECONDS)
        if held is Absent.EARLIER_PODS:
            await memory.actions.release_lost(pods)
            await report.wait_before_decision(turn.raw, turn.status, Reason.EARLIER_JOB, earlier_pods_sentence(pods))
            return NextTurn(EARLIER_JOB_SECONDS)
        if isinstance(held, Held) and held.is_restored:
            await report.warn(turn.raw, Reason.SECRET_RESTORED, RESTORED_MESSAGE)
        return await self._go_on(turn, current, held, claimed)

    async def _secret(self, turn: TurnContext, pods: Sequence[PodView]) -> Held | Absent | Foreign | None:
        """The job's Secret; None where the API server refuses it, which is reported."""
        try:
            return await turn.memory.secret.of(turn.job, turn.owner, pods, has_begun=turn.has_begun)
        except ApiRefused as error:
            refusal = Refusal("Secret", secret_name(turn.key.name), error)
            if refusal.passes or turn.has_begun:
                raise
            await turn.memory.report.refusals(turn.raw, [refusal])
            await turn.memory.report.wait_before_decision(turn.raw, turn.status, Reason.OBJECT_REFUSED, str(refusal))
            return None

    async def _wanted(
        self, key: JobKey, job: RLJob, raw: Json, status: RLJobStatus, *, was_accepted: bool = False
    ) -> Sequence[Json]:
        """All objects but the Secret. ValueError with sentences for what cannot be built."""
        uid = raw["metadata"]["uid"]
        owned = self._world.cache.owned(key)
        there = FoundClaims(checkpoint_claim.found(job.spec, key, uid, owned), control_claimed_by(key, owned))
        owner = Owner(namespace=key.namespace, uid=uid)
        memo, num_bytes = self._memories[key].manifests, raw["spec"].num_bytes
        return await memo.of(job, num_bytes, owner, status, there, was_accepted=was_accepted)

    async def _wanted_of(self, turn: TurnContext, status: RLJobStatus) -> Sequence[Json]:
        """The same, with this status. A turn with a refusal goes by the spec that was accepted before."""
        return await self._wanted(turn.key, turn.job, turn.raw, status, was_accepted=turn.refusal is not None)

    async def _claim(self, turn: TurnContext, current: Sequence[Json], held: Held | Absent | Foreign) -> ApplyOutcome:
        """Makes the names of the job's objects its own, and returns which cannot be. A job that is over has none."""
        if terminal(turn.status) is not None:
            return ApplyOutcome()
        delta = turn.memory.objects.difference(current)
        if isinstance(held, Held) or held is Absent.LOST:
            turn.memory.orphans.are_gone()
            return await turn.memory.objects.claim(delta, has_begun=turn.has_begun)
        pods = self._world.cache.pods(turn.key)
        stranded = [] if turn.has_begun else await turn.memory.orphans.stranded(pods)
        return ApplyOutcome(taken=(*delta.taken, *([held] if isinstance(held, Foreign) else []), *stranded))

    async def _go_on(
        self, turn: TurnContext, current: Sequence[Json], held: Held | Absent | Foreign, claimed: ApplyOutcome
    ) -> NextTurn:
        """Observes, decides, persists, and does what follows."""
        seen_at, key, memory, cache = time.monotonic(), turn.key, turn.memory, self._world.cache
        # What may take long comes first: what is decided on is to be as new as it can be.
        reports = await self._reports(turn, cache.pods(key))
        volume = await memory.claim.grow(turn.owner.uid, current)
        queue = await memory.queue.look(turn.job, turn.owner, labels_of(turn.raw), turn.status)
        coordinator = await self._coordinator(turn, held)
        seen = await coordinator.status() if coordinator is not None else None
        pods, digests = cache.pods(key), templates(current, cache.owned(key))
        retained = checkpoint_claim.retained_run(key, turn.owner.uid, cache.owned(key), current)
        now = self._world.clock()
        observed, members = observe(
            turn,
            pods,
            digests,
            seen,
            reports,
            now,
            secret_is_lost=held is Absent.LOST,
            blockers=memory.blockers.current(claimed.refusals),
            retained=retained,
            volume=volume,
            edited=memory.objects.edited(current),
            queue=queue,
        )
        decision = decide(observed, now)
        early = await memory.status.write(turn.raw, turn.status, decision.status)
        memory.restart_clock.persisted(decision.events, seen_at)
        opened: list[Event] = []
        try:
            outcome = await self._apply(turn, decision, claimed)
            if outcome.taken and terminal(decision.status) is None:  # since the names were claimed
                memory.blockers.applied(outcome)
                return NextTurn(RETRY_SECONDS, Urgency.ALARM)
            unnoted = await self._note_record(turn, decision)
            outcome = replace(outcome, refusals=(*outcome.refusals, *unnoted))
            memory.blockers.applied(outcome)
            context = ActionContext(turn.job, decision.status, pods, members, coordinator, opened)
            is_refused = await self._act(_without_deletion(decision) if unnoted else decision, context, turn)
            await memory.actions.release_lost(pods)
            brought = await self._bring_workload(turn, decision)
        finally:
            is_over = terminal(decision.status) is not None
            overridden = [] if is_over else memory.manifests.newly_overridden(current)
            await memory.report.decision(turn.raw, turn.job, decision, overridden)
            await memory.report.wait(turn.raw, decision.status)
            received = coordinator.take_unreported(decision.status) if coordinator is not None else []
            await memory.report.events(turn.raw, turn.status, [*received, *opened])
            for sentence in memory.tracker_news.of(observed.trackers or ()):
                await memory.report.warn(turn.raw, Reason.TRACKER_FAILED, sentence)
        soonest = [decision.next_turn_at - self._world.clock()]
        for restored in outcome.restored:
            await memory.report.warn(turn.raw, Reason.OBJECT_RESTORED, str(restored))
        if (due := memory.objects.edits.due_in) is not None:
            soonest.append(due)
        outcome = replace(outcome, refusals=(*outcome.refusals, *brought.refusals))
        if brought.again:
            soonest.append(RETRY_SECONDS)
        if brought.problem:
            soonest.append(REFUSED_SECONDS)
        if outcome.refusals:
            await memory.report.refusals(turn.raw, outcome.refusals)
            soonest.append(REFUSED_SECONDS)
        if outcome.waits:
            soonest.append(EARLIER_JOB_SECONDS)
        if is_refused:
            return NextTurn(RETRY_SECONDS, Urgency.ALARM)
        if coordinator is not None and seen is None and not _stops(decision):
            soonest.append(coordinator.ask_again_seconds)
        if early is not None:
            soonest.append(early)
        if volume is not None and volume.refusal:
            soonest.append(checkpoint_claim.RETRY_SECONDS)
        return NextTurn(min(soonest))

    async def _reports(self, turn: TurnContext, pods: Sequence[PodView]) -> BlockerReports:
        """What blocks objects that do not come to run, where they are waited for."""
        owned, status = self._world.cache.owned(turn.key), turn.status
        if rests(status):
            return BlockerReports()
        return BlockerReports(owned, await turn.memory.cluster_events.about(suspects(pods, owned)))

    async def _bring_workload(self, turn: TurnContext, decision: Decision) -> Brought:
        """Writes to the job's Workload; of a job that ends, once its pods are notified."""
        if _is_ending(decision):
            return Brought()
        pods, labels = self._world.cache.pods(turn.key), labels_of(turn.raw)
        return await turn.memory.queue.bring(turn.job, turn.owner, labels, decision.status, pods)

    async def _note_record(self, turn: TurnContext, decision: Decision) -> list[Refusal]:
        """Notes on the claim how far the job came; a refusal of that stops only the deletion of the job."""
        try:
            await turn.memory.claim.note_record(turn.owner.uid, decision.status)
        except ApiRefused as error:
            refusal = Refusal(CLAIMS.kind, checkpoint_claim_name(turn.key.name), error)
            if refusal.passes:
                raise
            return [refusal]
        return []

    async def _apply(self, turn: TurnContext, decision: Decision, claimed: ApplyOutcome) -> ApplyOutcome:
        """Brings the objects to what was decided, except while the job's pods are being notified that it is over."""
        if _is_ending(decision):
            return ApplyOutcome()
        wanted = await self._wanted_of(turn, decision.status)
        objects = turn.memory.objects
        return await objects.carry_out(objects.difference(wanted), claimed)

    async def _coordinator(self, turn: TurnContext, held: Held | Absent | Foreign) -> JobCoordinator | None:
        """The coordinator, if a pod of it takes requests. Without one, nothing is requested any more."""
        key, contact = turn.key, turn.memory.contact
        if not isinstance(held, Held):
            contact.not_asked(Reason.SECRET_LOST, "nobody knows the token any more with which the coordinator is asked")
            return None
        pods = [pod for pod in self._world.cache.pods(key) if pod.component == COMPONENT_COORDINATOR]
        if not any(pod.ready and not pod.deleting for pod in pods):
            await self._world.coordinators.close(key)
            contact.has_no_ready_pod(pods)
            return None
        return await self._world.coordinators.of(key, held.token, contact, num_processes(turn.job, turn.status))

    async def _act(self, decision: Decision, context: ActionContext, turn: TurnContext) -> bool:
        """In order; True if the coordinator refused or did not answer, which ended it."""
        memory = turn.memory
        try:
            for action in decision.actions:
                await memory.actions.carry_out(action, context)
        except CoordinatorError as error:
            _log.info("%s: %s", turn.key, error)
            if isinstance(error, CoordinatorRefused):
                memory.blockers.refused(str(error))
            return True
        memory.blockers.ordered()
        if any(isinstance(action, SetDesired | RaiseEpoch) for action in decision.actions):
            memory.restart_clock.ordered()
        if _stops(decision):
            await self._world.coordinators.close(turn.key)
        return False


def _is_left(raw: Json) -> bool:
    """Whether the job is being deleted and what it is made of is to stay."""
    return "deletionTimestamp" in raw["metadata"] and leaves_everything(finalizers_of(raw))


def _sooner(next_turn: NextTurn | None, *due_in: float | None) -> NextTurn | None:
    """The same turn, or an earlier one."""
    due = min((each for each in due_in if each is not None), default=None)
    if due is None or (next_turn is not None and next_turn.in_seconds <= due):
        return next_turn
    return NextTurn(due)


def _stops(decision: Decision) -> bool:
    """Whether nothing is asked of the coordinator any more."""
    return any(isinstance(action, Stop) for action in decision.actions)


def _without_deletion(decision: Decision) -> Decision:
    """The same without the deletion of the job, of which nothing would be known then."""
    return replace(decision, actions=tuple(each for each in decision.actions if not isinstance(each, DeleteJob)))


def _is_ending(decision: Decision) -> bool:
    """Whether the job is over and its pods are still being notified: they stay until the core decides to stop."""
    over = any(isinstance(action, Stop | DeleteJob) for action in decision.actions)
    return terminal(decision.status) is not None and not over
