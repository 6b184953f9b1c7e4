"""One job between turns: what the operator remembers of it, and the context in which one turn handles it.

The reconciler makes a `JobMemory` per uid and drops it with the job. Everything in it may be lost with the operator;
what must survive is in the job's status.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from rljob_api.cluster import ANNOTATION_TEMPLATE
from rljob_api.spec import RLJob
from rljob_api.status import AcceptedStatus, ConditionType, RLJobStatus
from rljob_operator.build import FoundClaims, Owner, Platform, manifests, overridden
from rljob_operator.cluster.actions import Actions
from rljob_operator.cluster.builds import BuildThreads
from rljob_operator.cluster.coordinators import CoordinatorContact, JobCoordinators
from rljob_operator.cluster.queued import QueuedJob
from rljob_operator.cluster.report import JobReport
from rljob_operator.core import Event, Reason, RefusedSpec
from rljob_operator.kube.accepted_spec import AcceptedSpec
from rljob_operator.kube.api import Api, Json
from rljob_operator.kube.apply import JobObjects, leaves_alone
from rljob_operator.kube.blockers import BlockerMemory, ClusterEvents
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.capabilities import SpecRehearsal
from rljob_operator.kube.checkpoint_claim import CheckpointClaim
from rljob_operator.kube.clock import Clock
from rljob_operator.kube.events import Events
from rljob_operator.kube.job_secrets import JobSecret
from rljob_operator.kube.job_workload import JobWorkload
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.kube.ownership import OrphanedPods
from rljob_operator.kube.pod_facts import Ends, Startups
from rljob_operator.kube.status_writer import StatusWriter
from rljob_operator.kube.tracker_pods import TrackerNews
from rljob_operator.kube.views import JobKey, OwnedView
from rljob_operator.options import OperatorOptions

_SCALING = (ConditionType.SUSPENDED, ConditionType.SUCCEEDED, ConditionType.FAILED)
"""Conditions that `build.scale` reads; the others come and go and change no object."""


class ManifestsMemo:
    """Of one job, for the last spec and scale that were asked for."""

    def __init__(self, options: OperatorOptions, platform: Platform, builds: BuildThreads) -> None:
        self._options = options
        self._platform = platform
        self._builds = builds
        self._known: tuple[RLJob, object, Sequence[Json]] | None = None
        self._judged: Sequence[Json] | None = None
        self._overridden: list[str] = []

    async def of(
        self,
        job: RLJob,
        num_bytes: int,
        owner: Owner,
        status: RLJobStatus,
        found: FoundClaims,
        *,
        was_accepted: bool,
    ) -> Sequence[Json]:
        """All objects but the Secret, of a spec of so many bytes. ValueError, with sentences, if it cannot be built."""
        scale = tuple((role.name, len(role.pods)) for role in status.roles)
        conditions = frozenset(c.type for c in status.conditions if c.status == "True" and c.type in _SCALING)
        begun = (status.restart.epoch > 0, status.restart.releasing, status.queue)
        made_of = (owner, scale, conditions, *begun, found, was_accepted)
        if self._known is not None and self._known[0] is job and self._known[1] == made_of:
            return self._known[2]
        given = (job, owner, status, self._options, self._platform, found)
        made = await self._builds.run(num_bytes, partial(manifests, *given, was_accepted=was_accepted))
        self._known = (job, made_of, made)
        return made

    @property
    def is_built(self) -> bool:
        """Whether objects are in memory."""
        return self._known is not None

    def forget(self) -> None:
        """Gives the memory of the objects back; they are built again when they are asked for."""
        self._known = self._judged = None

    def newly_overridden(self, made: Sequence[Json]) -> list[str]:
        """Where the job differs from the administrator's template and did not when this was last asked.

        Asked again after each edit, and by an operator with another template in its options: it knows of none before.
        """
        if made is self._judged:
            return []
        before, self._overridden = self._overridden, overridden(self._options, made)
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


@dataclass(slots=True)
class _Running:
    scope: str
    seen_at: float
    ordered: bool = False


class RestartClock:
    """The running restart of one job; a wider one takes over from a narrower one."""

    def __init__(self, metrics: Metrics) -> None:
        self._histogram = metrics.restart_seconds
        self._running: _Running | None = None

    def persisted(self, events: tuple[Event, ...], seen_at: float) -> None:
        """The status with these decisions is in the API server."""
        scopes = {event.scope.value for event in events if event.scope is not None}
        if scopes:
            scope = "Global" if "Global" in scopes else scopes.pop()
            self._running = _Running(scope, seen_at)
            self._observe(scope, "persisted", seen_at)
        if any(event.reason is Reason.READY for event in events) and self._running is not None:
            self._observe(self._running.scope, "ready", self._running.seen_at)
            self._running = None

    def ordered(self) -> None:
        """The coordinator has taken the orders."""
        running = self._running
        if running is not None and not running.ordered:
            running.ordered = True
            self._observe(running.scope, "told", running.seen_at)

    def _observe(self, scope: str, stage: str, since: float) -> None:
        self._histogram.labels(scope, stage).observe(time.monotonic() - since)


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """What all jobs share."""

    api: Api
    cache: Cache
    coordinators: JobCoordinators
    metrics: Metrics
    options: OperatorOptions
    platform: Platform
    identity: str
    clock: Clock
    """The API server's."""
    builds: BuildThreads = field(default_factory=BuildThreads)
    missed: asyncio.Event = field(default_factory=asyncio.Event)
    """A job was refused for an API that the platform lacks."""


@dataclass(frozen=True, slots=True)
class JobMemory:
    """Of one job."""

    uid: str
    accepted: AcceptedSpec
    contact: CoordinatorContact
    secret: JobSecret
    manifests: ManifestsMemo
    orphans: OrphanedPods
    claim: CheckpointClaim
    ends: Ends
    startups: Startups
    cluster_events: ClusterEvents
    blockers: BlockerMemory
    objects: JobObjects
    status: StatusWriter
    actions: Actions
    restart_clock: RestartClock
    rehearsal: SpecRehearsal
    report: JobReport
    tracker_news: TrackerNews
    queue: QueuedJob

    @property
    def retains_builds(self) -> bool:
        """Whether it takes the memory of a parsed spec or of objects, also of one that an edit has replaced since."""
        return self.accepted.is_parsed or self.manifests.is_built

    def forget_builds(self) -> None:
        """Forgets what was parsed and built: the next turn makes it again."""
        self.accepted.forget()
        self.manifests.forget()
        self.queue.forget()

    @classmethod
    def of_new(cls, key: JobKey, uid: str, world: OperatorContext, events: Events) -> "JobMemory":
        """Of a job that nothing is known of yet."""
        status, clock = StatusWriter(world.api, world.cache, key), world.clock
        workload = JobWorkload(world.api, world.cache, key, uid, clock)
        return cls(
            uid=uid,
            accepted=AcceptedSpec(world.api, key),
            contact=CoordinatorContact(world.identity, clock),
            secret=JobSecret(world.api, world.cache, key),
            manifests=ManifestsMemo(world.options, world.platform, world.builds),
            orphans=OrphanedPods(world.api, key),
            claim=CheckpointClaim(world.api, world.cache, key),
            ends=Ends(clock),
            startups=Startups(clock),
            cluster_events=ClusterEvents(world.api, key),
            blockers=BlockerMemory(),
            objects=JobObjects(world.api, world.cache, key, uid),
            status=status,
            actions=Actions(world.api, key, uid, clock),
            restart_clock=RestartClock(world.metrics),
            rehearsal=SpecRehearsal(world.api, key),
            report=JobReport(key, events, world.metrics, status, clock),
            tracker_news=TrackerNews(),
            queue=QueuedJob(workload, world.options, world.platform, world.missed),
        )


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What a turn begins with: the job as the API server has it."""

    key: JobKey
    raw: Json
    job: RLJob
    """By the last spec that was accepted."""
    accepted: AcceptedStatus
    """What is remembered of that spec."""
    refusal: RefusedSpec | None
    """There is a newer one that cannot work."""
    status: RLJobStatus
    """As last persisted."""
    memory: JobMemory

    @property
    def owner(self) -> Owner:
        """Who the objects belong to."""
        return Owner(namespace=self.key.namespace, uid=self.raw["metadata"]["uid"])

    @property
    def has_begun(self) -> bool:
        """Whether pods may have been made for it."""
        return self.status.restart.epoch > 0
