"""The coordinator's rooms put together: its requests, its background duties, and the status that the supervisor reads.

Everything here runs in the coordinator's one thread (`serial_executor`), so that no two requests interleave. Status
works from memory while the control Redis is away. `app` calls it; it knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rljob_api.names import Epoch, WeightVersion
from rljob_api.roles import TICKET_ROLE, TRAITS
from rljob_api.spec import RLJobSpec
from rljob_api.wire.checkpoints import CheckpointRecord, CheckpointRequest
from rljob_api.wire.epochs import DesiredState, EpochRequest, RestorePoint
from rljob_api.wire.failures import Failure, FailureKind
from rljob_api.wire.launchers import LauncherHello
from rljob_api.wire.observation import (
    CoordinatorStatus,
    EvaluationObservation,
    EvaluationReport,
    EventKind,
    PodObservation,
    RankObservation,
    ServerState,
)
from rljob_api.wire.ranks import Beat, BeatAnswer, RankHello, RankState, RankWelcome, StepReport
from rljob_workers.data.rows import place_of_prompt, place_of_row
from rljob_workers.dcs.coordinator.background_care import Evaluations, HeldWork, StorageCare
from rljob_workers.dcs.coordinator.context import CoordinatorContext, Refused, not_open, wrong_epoch
from rljob_workers.dcs.coordinator.epochs import Epochs, note_job_to_come, runs_alike
from rljob_workers.dcs.coordinator.launchers import Launchers
from rljob_workers.dcs.coordinator.measures import Measures
from rljob_workers.dcs.coordinator.progress import Progress
from rljob_workers.dcs.coordinator.queue_room import QueueRoom
from rljob_workers.dcs.coordinator.rank_incarnations import Judged, RankIncarnations, beat_interval_seconds
from rljob_workers.dcs.coordinator.records import EVALUATION, RankEntry
from rljob_workers.dcs.coordinator.rendezvous import RendezvousTable
from rljob_workers.dcs.coordinator.restoring import Restoring, SavedFolder
from rljob_workers.dcs.coordinator.run_inputs import RunInputs
from rljob_workers.dcs.coordinator.server_gate import OpeningPatience, ServerGate
from rljob_workers.dcs.coordinator.steps import Steps
from rljob_workers.dcs.coordinator.turns import Goal, TurnTable
from rljob_workers.dcs.coordinator.weights import Weights
from rljob_workers.evaluation import is_evaluating_last, main_figures
from rljob_workers.transfer_queue.admin import SetAside


class Coordinator:
    """Every request, as a method; every background duty too."""

    def __init__(self, context: CoordinatorContext, checkpoint_dir: Path, opening: OpeningPatience) -> None:
        self._context = context
        self.store = context.store
        self._saved = SavedFolder(checkpoint_dir)
        self.job_name = context.job.metadata.name
        self.group_samples = context.job.spec.rollout.samples_per_prompt
        self.epochs = Epochs(context)
        self.ranks = RankIncarnations(context, self.epochs)
        self.launchers = Launchers(context, self.epochs, self.ranks)
        self.weights = Weights(context, self.epochs, self.ranks)
        self._measures = Measures(context)
        self.progress = Progress(context, self.epochs, self.ranks, self._measures)
        self._steps = Steps(context, self.epochs, self.ranks, self._measures)
        self.restoring = Restoring(context, self.epochs, self.ranks, self.progress, self._saved)
        self.inputs = RunInputs(context, self.ranks, checkpoint_dir)
        self.rendezvous = RendezvousTable(context, self.epochs, self.ranks)
        self.gate = ServerGate(context, self.epochs, self.launchers, self.ranks, opening)
        self.queue = QueueRoom(context, self.epochs, self.gate, self.ranks.advance)
        self._evaluations = Evaluations(context, self.epochs, self._measures, self._note_best)
        goal = Goal(context.job.spec, self._measures, self._evaluations)
        self.turns = TurnTable(context, self.epochs, self.ranks, goal)
        self._held_work = HeldWork(context, self.ranks)
        self.storage = StorageCare(context, self.epochs, self.progress)

    # --- supervisor ------------------------------------------------------------------------------------------------

    def raise_epoch(self, request: EpochRequest) -> RestorePoint:
        """Opens an epoch with what `restoring` chooses; the record file stands in where the control Redis knows less.

        Perhaps no living process has seen the tail that it lost: with the launchers dead too, the file alone shows it.
        """
        done = self.epochs.open_again(request)
        if done is not None:
            if self.gate.is_open:  # the coordinator that opened it may have come no further
                self.restoring.settle(self.restoring.choose(control_state_is_whole=True), done)
            return done
        self._require_job(request)
        self._require_later_epoch(request)
        self.epochs.note_to_come(request.epoch)
        self._saved.note_epoch(request.epoch)
        choice = self.restoring.choose(control_state_is_whole=self.gate.state is not ServerState.LOST)
        restore = self.epochs.raise_to(request, choice)
        self.ranks.epoch_opened()
        if self.gate.state is ServerState.LOST:
            self.gate.opened_by_epoch()
        self.restoring.settle(choice, restore)
        self._note_best()
        return restore

    def _require_job(self, request: EpochRequest) -> None:
        """An epoch with another job is opened by a coordinator that was made for it."""
        if request.job is None or runs_alike(request.job, self._context.job):
            return
        self._context.store.commit([note_job_to_come(request.epoch, request.job)])
        self.gate.successor = request.job
        raise not_open(f"The coordinator begins anew with the job of epoch {request.epoch}. Ask again.")

    def _require_later_epoch(self, request: EpochRequest) -> None:
        """An epoch that has left folders and lines of a log already must not be another one's, too."""
        if request.epoch <= self._earlier_epoch():
            raise wrong_epoch(
                f"epoch: {request.epoch} is not above {self._earlier_epoch()}, in which the checkpoints here were last "
                "trained on. Read /v1/status and decide anew."
            )

    def _earlier_epoch(self) -> Epoch:
        """The last epoch by the files of the checkpoints, where the control Redis knows of none.

        An epoch that this job has noted there itself, and died before it was open, is no earlier one.
        """
        if self.epochs.current.restore.epoch > 0:
            return Epoch(0)
        last = self._saved.last_epoch()
        return last if last > self.epochs.to_come else Epoch(0)

    def order(self, desired: DesiredState) -> None:
        """Takes new orders; lives that they leave behind are over."""
        self.epochs.order(desired)
        self.ranks.end_outdated()
        for role in {order.pod.role for order in desired.pods}:
            self.ranks.emit_readiness(role)

    def status(self) -> CoordinatorStatus:
        """What is observed now; the queue's counts are the last known ones while its server is away."""
        current, silent_since = self.epochs.current, self.gate.silence_counts_from
        restore, last = current.restore, self.epochs.last_step
        published = self.weights.published()
        recorded = self.progress.recorded(restore)
        return CoordinatorStatus(
            server=self.gate.state,
            epoch=restore.epoch,
            lineage=restore.lineage,
            decision_id=current.decision_id,
            published=None if published is None else published.version,
            recorded=None if recorded is None else recorded[0],
            recorded_folder=None if recorded is None else recorded[1],
            stop=self.turns.stop(),
            step=last.step if last is not None else _restored_step(restore),
            last_step=last,
            evaluation=None if self.evaluated is None else _observed(self.evaluated, self._context.job.spec),
            is_evaluating_last=self._is_evaluating_last(None if recorded is None else recorded[0]),
            pods=[self._pod(hello, silent_since) for _, hello in sorted(self.launchers.by_pod().items())],
            failures=self.progress.failures(),
            queue=self.queue.observed_counts().model_copy(update={"room": self.storage.room()}),
            last_event=self.store.last_event,
            desired=self.epochs.ordered,
            progress_age_seconds=self.ranks.advance.age_seconds(),
            demand=self.ranks.demand.at_step,
            beat_interval_seconds=beat_interval_seconds(self._context.job.spec.restart_policy),
            earlier_epoch=self._earlier_epoch(),
        )

    @property
    def evaluated(self) -> EvaluationReport | None:
        """The last evaluation of a version that is still part of the job's history."""
        return self._context.store.value(EVALUATION)

    def _is_evaluating_last(self, recorded: WeightVersion | None) -> bool:
        known = self.evaluated
        return is_evaluating_last(self._context.job.spec, recorded, None if known is None else known.version)

    def _pod(self, hello: LauncherHello, silent_since: float) -> PodObservation:
        """As observed; no silence is counted from before `silent_since`."""
        ranks = sorted(self.ranks.of_pod(hello.pod), key=lambda entry: entry.hello.incarnation.key.rank)
        received = self.launchers.polls.get(hello.launcher)
        return PodObservation(
            pod=hello.pod,
            pod_uid=hello.pod_uid,
            launcher=hello.launcher,
            launcher_pid=hello.pid,
            container_restart_count=hello.container_restart_count,
            poll_age_seconds=self._age(self.launchers.received_at(hello.launcher), silent_since),
            is_heard=received is not None,
            carried=None if received is None else received.poll.carried,
            processes=[] if received is None else received.poll.ranks,
            engines=[] if received is None else received.poll.engines,
            ranks=[self._rank(entry, silent_since) for entry in ranks],
        )

    def _rank(self, entry: RankEntry, silent_since: float) -> RankObservation:
        incarnation = entry.hello.incarnation
        received = self.ranks.beats.get(incarnation.id)
        beat = None if received is None else received.beat
        received_at = self.ranks.received_at(incarnation.id)
        busy = None if beat is None else beat.busy
        return RankObservation(
            rank=incarnation.key.rank,
            incarnation=incarnation.id,
            epoch=incarnation.epoch,
            generation=incarnation.generation,
            pid=entry.hello.pid,
            state=RankState.READY if entry.ready else RankState.STARTING,
            beat_age_seconds=self._age(received_at, silent_since),
            busy=busy,
            busy_left_seconds=None if busy is None else busy.seconds - self._age(received_at, silent_since),
            waiting=None if beat is None else beat.waiting,
            holds=None if beat is None else beat.holds,
        )

    def _age(self, received_at: float | None, silent_since: float) -> float:
        return self._context.clock() - (silent_since if received_at is None else max(silent_since, received_at))

    # --- ranks and launchers ---------------------------------------------------------------------------------------

    def register_rank(self, hello: RankHello) -> RankWelcome:
        """Begins an incarnation."""
        self.ranks.register(hello)
        return RankWelcome(
            restore=self.epochs.current.restore,
            published=self.weights.published(),
            beat_interval_seconds=beat_interval_seconds(self._context.job.spec.restart_policy),
        )

    def beats(self, beats: Sequence[Beat]) -> list[Judged]:
        """Renews what ranks have in work, in one call on the queue; the answer to each, in their order."""
        self.gate.require_open()
        answers = [self._judged(beat) for beat in beats]
        pairs = zip(beats, answers, strict=True)
        self.ranks.renew([beat for beat, answer in pairs if isinstance(answer, BeatAnswer)])
        return answers

    def _judged(self, beat: Beat) -> Judged:
        try:
            self.ranks.check_beat(beat)
        except Refused as refused:
            return refused
        pod = beat.incarnation.key.pod
        return BeatAnswer(
            drain=self.epochs.drains(pod),
            stops=self.turns.stops(pod.role),
            published=self.weights.published(),
            role_ranks=self.epochs.topology(pod.role).num_ranks,
        )

    def report_failure(self, failure: Failure) -> None:
        """Keeps a failure; a queue that has lost state cannot take it, and need not.

        A death may have set a prompt aside. That is reported in the same turn: the supervisor must receive that a
        group has no draw left before it restarts for the death.
        """
        server_is_open = self.gate.state is ServerState.OPEN
        self.progress.report_failure(failure, server_is_open=server_is_open)
        if server_is_open and TRAITS[failure.pod.role].draws_tickets:
            self.check_prompts()

    # --- progress --------------------------------------------------------------------------------------------------

    def report_step(self, report: StepReport) -> None:
        """Takes a role's report in. What trains leaves at once where stopWhen holds with it."""
        self._steps.report(report)
        self.turns.stop_if_reached()

    def record(self, request: CheckpointRequest) -> CheckpointRecord:
        """Records a checkpoint; which one is the best is written down before this is answered."""
        record = self.progress.record(request)
        self._note_best()
        return record

    def _note_best(self) -> None:
        self._saved.note_best(self._measures.best())

    # --- background ------------------------------------------------------------------------------------------------

    def check_units(self) -> None:
        """Finds what storage units have lost, and makes room if memory is short."""
        if not self._is_at_work():
            return
        self.storage.check()

    def check_prompts(self) -> None:
        """Reports prompts that were set aside; a group that has no draw left fails the job by name."""
        if not self._is_at_work():
            return
        prompts = self._context.admin.set_aside()
        for aside in prompts:
            self._emit_set_aside(aside)
        if prompts:
            self._context.admin.forget_set_aside(len(prompts))

    def check_held_work(self) -> None:
        """Gives idle replicas what one has that does nothing."""
        if not self._is_at_work():
            return
        published = self.weights.published()
        self._held_work.check(None if published is None else published.version, self.gate.silence_counts_from)

    def check_evaluation(self) -> None:
        """Reports what an evaluation has found, once all of it is scored."""
        if self._is_at_work():
            self._evaluations.check()
            self.turns.stop_if_reached()

    def _is_at_work(self) -> bool:
        """Whether there is a queue to maintain: the control Redis is open, and an epoch was."""
        return self.gate.state is ServerState.OPEN and self.epochs.current.restore.epoch > 0

    def sweep(self) -> None:
        """Deletes bytes that nothing names any more."""
        if self.gate.state is ServerState.OPEN:
            self._context.admin.sweeper.sweep()

    def _emit_set_aside(self, aside: SetAside) -> None:
        """Once, also where a coordinator died between emitting and forgetting."""
        where = f"group {aside.group} of train_{aside.rollout_id}"
        place = self._place_of_prompt(aside.prompt_index)
        message = (
            f"Prompt {aside.prompt_index} ({place}; {where}) was set aside: workers died {aside.deaths} times while "
            "they had it in work, the last time it alone."
        )
        epoch = self.epochs.current.restore.epoch
        event = self._context.event(EventKind.PROMPT_SET_ASIDE, epoch, message)
        value = f"{aside.prompt_index}/{aside.attempt}/{aside.deaths}"
        self._context.emit_once(f"aside:{aside.rollout_id}/{aside.group}", value, event)
        if aside.exhausted:
            self.progress.report_found(
                FailureKind.REPORTED,
                TICKET_ROLE,
                f"attempts/{aside.rollout_id}/{aside.group}/{aside.deaths}",
                f"{where} has no draw left (rollout.maxAttempts). {message}",
            )

    def _place_of_prompt(self, index: int) -> str:
        spec = self._context.job.spec
        if spec.rollout.curriculum is None:
            return place_of_prompt(spec.data, index)
        row = self._context.admin.chosen_row(index)
        return "a row that is not known" if row is None else place_of_row(spec.data, row)


def _observed(report: EvaluationReport, spec: RLJobSpec) -> EvaluationObservation:
    sets = () if spec.evaluation is None else spec.evaluation.sets
    return EvaluationObservation(version=report.version, sets=main_figures(report.metrics, sets))


def _restored_step(restore: RestorePoint) -> int | None:
    """The last step that a restored checkpoint contains."""
    return restore.version - 1 if restore.version > 0 else None
