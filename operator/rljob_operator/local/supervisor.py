"""The supervisor of `rljob run`: observe -> decide -> persist -> act, until the core stops the job.

`core` decides; here is how one machine is observed and changed, with the HTTP transport to the run's coordinator and
the signals that stop a run.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import httpx

from rljob_api.failpoints import failpoint
from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_SUCCEEDED
from rljob_api.spec import RLJob
from rljob_api.status import Phase, RLJobStatus
from rljob_api.wire.epochs import EpochRequest
from rljob_api.wire.identity import Endpoints
from rljob_api.wire.observation import CoordinatorEvent, CoordinatorStatus
from rljob_api.wire.processes import preloads_of
from rljob_operator.coordinator_client.follower import QUIET, CoordinatorFollower, FollowerLimits
from rljob_operator.coordinator_client.link import (
    CoordinatorError,
    CoordinatorLink,
    CoordinatorRefused,
    CoordinatorUnreachable,
)
from rljob_operator.core import (
    AcknowledgeFailures,
    Action,
    Autoscaling,
    CreatePod,
    DeleteJob,
    KeepPod,
    KillPod,
    MarkForDeletion,
    Observed,
    RaiseEpoch,
    Reason,
    RestartInfrastructure,
    SetDesired,
    Stop,
    UserRequest,
    begin,
    decide,
)
from rljob_operator.core.autoscaling import wanted_replicas
from rljob_operator.core.conditions import terminal
from rljob_operator.core.membership import pods
from rljob_operator.core.notices import epoch_opened
from rljob_operator.local.device_placement import PodDevices
from rljob_operator.local.journal import Journal
from rljob_operator.local.pods import Pods
from rljob_operator.local.processes import Infrastructure
from rljob_operator.local.run_folder import RunFolder
from rljob_operator.local.services import COORDINATOR, PARENT, Services, shut_down
from rljob_operator.local.trackers import FINISH_SECONDS, Trackers
from rljob_operator.local.watchdog import Watchdog

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def held_back() -> Iterator[None]:
    """Until `follow`, or the end of the block. Threads that begin meanwhile never take one."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def follow(asked: Callable[[], None]) -> None:
    """Calls `asked` in the running loop for each of them, also for one that was held back."""
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, asked)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


class LocalTransport:
    """To the coordinator of this run, by a client that is opened and closed by its caller.

    Reports every answer to the watchdog; a refusal is one, too.
    """

    def __init__(self, http: httpx.AsyncClient, watchdog: Watchdog) -> None:
        self._http = http
        self._watchdog = watchdog

    async def send(self, method: str, path: str, body: str | None, timeout: float, most_bytes: int) -> bytes:
        """The body of a good answer."""
        del most_bytes  # who answers is a child of this process
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            answer = await self._http.request(method, path, content=body, headers=headers, timeout=timeout)
        except httpx.TransportError as error:
            raise CoordinatorUnreachable(f"the coordinator did not answer {method} {path}: {error!r}") from error
        self._watchdog.answered(COORDINATOR)
        if answer.is_error:
            raise CoordinatorRefused(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
        return answer.content


def coordinator_client(endpoints: Endpoints) -> httpx.AsyncClient:
    """Connects when it is used. Environment proxies are not asked: the coordinator is on this machine."""
    return httpx.AsyncClient(
        base_url=endpoints.coordinator, headers={"X-RLJob-Token": endpoints.token}, trust_env=False
    )


PATIENCE_SECONDS = 0.25
"""A coordinator that takes longer to answer does not keep the supervisor from what it can decide without it."""


WAIT_SECONDS = 10.0


EVENTS_RETRY_SECONDS = 0.1


FOLLOWER_LIMITS = FollowerLimits(
    patience_seconds=PATIENCE_SECONDS,
    first_patience_seconds=PATIENCE_SECONDS,
    wait_seconds=WAIT_SECONDS,
    retry_seconds=(EVENTS_RETRY_SECONDS, EVENTS_RETRY_SECONDS),
)
"""Steps are written down as they come: no event is held back."""


class RunFollower(CoordinatorFollower):
    """Writes events into the journal as they arrive, and wakes the supervisor."""

    def __init__(self, link: CoordinatorLink, journal: Journal, wake: asyncio.Event) -> None:
        super().__init__(link, FOLLOWER_LIMITS)
        self._journal = journal
        self._wake = wake

    def receive(self, events: Sequence[CoordinatorEvent]) -> None:
        """Steps and publications are no cause for a turn."""
        for event in events:
            self._journal.record(event)
        if any(event.kind not in QUIET for event in events):
            self._wake.set()

    def answered_late(self, _seen: CoordinatorStatus | None) -> None:
        """The next turn reads it."""
        self._wake.set()


RETRY_SECONDS = 0.05
"""After an action that was refused or not answered everything is observed and decided again."""


class Supervisor:
    """One start of one job.

    supervisor = Supervisor(job, folder, devices, journal)
    exit_code = await supervisor.run()        # in the main thread: children die with the thread that made them
    """

    def __init__(self, job: RLJob, folder: RunFolder, devices: PodDevices, journal: Journal) -> None:
        self._job = job
        self._replicas = job.spec.roles.replicas()
        self._autoscaling = Autoscaling.of(job.spec)
        self._services = Services.prepare(folder, job)
        self._wake = asyncio.Event()
        self._pods = Pods(folder, devices, self._wake.set, preloads_of(job.spec, job.spec.roles.present()))
        self._infrastructure = Infrastructure(ended=self._ended, log_tail=folder.tail)
        last = journal.status
        journal.begin(*begin(last, wanted_replicas(self._replicas, self._autoscaling, last), time.time()))
        self._journal = journal
        self._watchdog = Watchdog(
            self._infrastructure,
            self._pods,
            self._services.probes(),
            journal,
            stopped_limit_seconds=float(job.spec.restart_policy.heartbeat_timeout_seconds),
            start_limit_seconds=float(job.spec.roles.rollout.engine.startup_seconds),
        )
        self._trackers = Trackers(
            job.spec.telemetry.report_to or (),
            folder,
            lambda sentence: journal.note(time.time(), Reason.TRACKER_FAILED.value, sentence),
        )
        self._interrupted_at: float | None = None
        self._killed = False
        self._last_refusal = ""

    async def run(self) -> int:
        """Until the job is over; leaves no process behind. The exit code of the command."""
        follow(self._interrupt)
        async with coordinator_client(self._services.endpoints) as http:
            self._link = CoordinatorLink(LocalTransport(http, self._watchdog))
            self._follower = RunFollower(self._link, self._journal, self._wake)
            try:
                # The parent's imports take longest, so it comes first; the Redis servers are up before clients connect.
                await self._infrastructure.start(
                    {
                        PARENT: self._pods.launch_parent,
                        **self._services.redis(),
                        COORDINATOR: self._services.coordinator,
                    }
                )
                self._trackers.start()
                await self._supervise()
            finally:
                await self._close()
        return _exit_code(self._journal.status)

    async def _supervise(self) -> None:
        watching = asyncio.create_task(self._watchdog.run())
        self._follower.listen_after(0)
        try:
            while not await self._turn() and not self._killed:
                pass
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self._follower.close()

    async def _turn(self) -> bool:
        """Observe, decide, persist, act, wait. True when the job is over."""
        self._wake.clear()
        now = time.time()
        decision = decide(await self._observe(), now)
        self._journal.persist(decision)
        self._pods.keep_only([key for key, _ in pods(decision.status)])
        over = any(isinstance(action, Stop) for action in decision.actions)
        until = decision.next_turn_at
        try:
            for action in decision.actions:
                await self._carry_out(action)
        except CoordinatorError as error:
            self._journal_refusal(error)
            until = time.time() + RETRY_SECONDS
        if over:
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until - time.time())):
                await self._wake.wait()
        return False

    async def _observe(self) -> Observed:
        return Observed(
            policy=self._job.spec.restart_policy,
            replicas=self._replicas,
            num_rollouts=self._job.spec.rollout.num_rollouts,
            status=self._journal.status,
            coordinator=await self._ask_coordinator(),
            pods=self._pods.facts(),
            infrastructure=self._infrastructure.facts(),
            interrupted_at=self._interrupted_at,
            request=UserRequest(startup_deadline_seconds=self._job.spec.startup_deadline_seconds),
            autoscaling=self._autoscaling,
            topologies=self._job.spec.roles.topologies(),
        )

    async def _ask_coordinator(self) -> CoordinatorStatus | None:
        """Its status; None if it is not there soon."""
        if self._infrastructure.running(COORDINATOR) is None:
            return None
        seen = await self._follower.status()
        if seen is not None:
            self._journal.queue = seen.queue
        return seen

    async def _carry_out(self, action: Action) -> None:
        match action:
            case RaiseEpoch():
                await self._raise_epoch(action)
            case SetDesired(desired):
                await self._link.set_desired(desired)
            case CreatePod(pod):
                self._pods.create(pod)
            case KillPod(pod, incarnation):
                self._pods.kill(pod, incarnation)
            case RestartInfrastructure(name):
                await self._infrastructure.restart(name)
            case AcknowledgeFailures(ids):
                await self._link.acknowledge(ids)
            case MarkForDeletion(pod, incarnation):
                self._pods.mark(pod, incarnation, leaves=True)
            case KeepPod(pod, incarnation):
                self._pods.mark(pod, incarnation, leaves=False)
            case Stop() | DeleteJob():  # the last one only on a cluster
                pass

    async def _raise_epoch(self, action: RaiseEpoch) -> None:
        failpoint("epoch.after_persist")
        request = EpochRequest(epoch=action.epoch, decision_id=action.decision_id, reason=action.reason)
        point = await self._link.raise_epoch(request)
        failpoint("epoch.after_raise")
        self._journal.emit(epoch_opened(point, time.time()))

    def _ended(self, name: str) -> None:
        """An infrastructure process is gone."""
        if name == PARENT:
            self._pods.parent_ended()
        if name == COORDINATOR:
            self._follower.drop_question()
        self._wake.set()

    def _journal_refusal(self, error: Exception) -> None:
        """A refusal that repeats is noted once."""
        if str(error) != self._last_refusal:
            self._journal.note(time.time(), type(error).__name__, str(error))
        self._last_refusal = str(error)

    def _interrupt(self) -> None:
        """The first time drains, the second time kills."""
        if self._interrupted_at is not None:
            self._killed = True
        else:
            self._interrupted_at = time.time()
        self._wake.set()

    async def _close(self) -> None:
        await shut_down(self._services, self._infrastructure, self._pods, self._follower, killed=self._killed)
        if self._killed and terminal(self._journal.status) is None:
            killed = self._journal.status.model_copy(update={"phase": Phase.INTERRUPTED})
            self._journal.status = killed
        self._journal.flush()
        await self._trackers.finish(patience=0.0 if self._killed else FINISH_SECONDS)


def _exit_code(status: RLJobStatus) -> int:
    ended = terminal(status)
    if status.phase is Phase.SUCCEEDED:
        return EXIT_SUCCEEDED
    if status.phase is Phase.INTERRUPTED:
        return EXIT_INTERRUPTED
    bad_manifest = ended is not None and ended.reason in (Reason.CONFIGURATION_ERROR, Reason.ENGINE_MISMATCH)
    return EXIT_BAD_MANIFEST if bad_manifest else EXIT_FAILED
