"""Actor_fwd and reference: log-probs of streamed rows under the version that the rows ask for.

Run by the assembly. `train_r` gets `log_probs` under version r exactly, and `ref_log_probs` under version
floor(r / k) * k, or under a teacher.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass

from rljob_api.names import Stream
from rljob_api.roles import TRAITS
from rljob_api.spec.restart import loading_seconds
from rljob_api.wire.identity import WeightId
from rljob_workers import pipeline
from rljob_workers.algorithms.objective import Output
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.dcs.weights import build_receiver
from rljob_workers.dcs.weights.transport import WeightReceiver
from rljob_workers.gangs.rendezvous import form_group
from rljob_workers.gangs.shared_claims import SharedClaims
from rljob_workers.gangs.shared_weights import SharedReceiver
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder, Weights, WeightSource
from rljob_workers.rank_loop import TURN_SECONDS, Draining, RankParts, RowServer, idle_until_ordered
from rljob_workers.run_inputs import report_inputs
from rljob_workers.scoring.teacher import Teacher
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.tensors.columns import Column
from rljob_workers.trainers import build_forward_model
from rljob_workers.trainers.base import ForwardModel
from rljob_workers.trainers.data_parallel import RankVote, agree
from rljob_workers.trainers.mesh import Mesh
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.types import Batch, Task

LARGE_BYTES = 256 << 20
"""Less is loaded in less than a second."""


@dataclass(frozen=True, slots=True)
class ForwardConfig:
    """What one forward role serves."""

    task: str
    field: str
    """The column that it writes."""
    temperature: float
    """That of sampling, so that ratios compare the same distribution."""
    stream: Stream
    num_rollouts: int
    max_rows: int
    """Rows of one claim; a replica takes no more than its share of a partition."""
    interval: int | None
    """Partitions served under one version: 1 for actor_fwd, refUpdateInterval for reference; None: all of them."""

    def partitions(self, version: int) -> range:
        """The partitions whose rows need `version`."""
        end = self.num_rollouts if self.interval is None else min(version + self.interval, self.num_rollouts)
        return range(version, end)


class ForwardLoop:
    """The main loop of one rank. The ranks of a gang go through it in step, with the same rows and weights.

    Its source alone claims, renews leases and puts; all of them compute. Where one is ordered to drain all leave.
    """

    def __init__(
        self,
        config: ForwardConfig,
        session: RankSession,
        queue: TransferQueueClient,
        receiver: WeightReceiver,
        model: ForwardModel,
        timeline: Timeline,
        mesh: Mesh,
    ) -> None:
        """`model` is one of the ranks of `mesh` together. Nothing is waited for here."""
        self._config = config
        self._session = session
        self._queue = queue
        self._receiver = SharedReceiver(receiver, mesh.gang)
        self._model = model
        self._mesh = mesh
        claims = SharedClaims(queue, mesh)
        self._rows = RowServer(
            session, claims, config.task, config.max_rows, self._work, self._is_draining, counts=mesh.is_source
        )
        self._timeline = timeline
        self._held: WeightId | None = None

    def run(self) -> None:
        """Serves version after version until the last partition is done or the pod drains."""
        try:
            while self._held is None or self._held.version + (self._config.interval or 0) < self._config.num_rollouts:
                self._take(self._await_newer())
                self._rows.serve_partitions(self._partitions())
                if self._config.interval is None:
                    break
            idle_until_ordered(self._session, self._held, serve=self._serve_again, draining=self._is_draining)
        except Draining:
            pass  # all ranks of a gang alike; those that have no order themselves wait for it
        idle_until_ordered(self._session, self._held)

    def _is_draining(self) -> bool:
        """Whether a rank of the gang is ordered to drain; a collective."""
        vote = RankVote(has_rows=False, drains=self._session.draining, num_micro_batches=0)
        return bool(agree(self._mesh.gang, vote, "who drains").draining)

    def _partitions(self) -> range:
        return self._config.partitions(self._held.version if self._held else 0)

    def _serve_again(self) -> None:
        """Rows that are lost now are made again under this version: without them no newer one would ever come."""
        self._rows.serve_again(self._partitions())

    def _await_newer(self) -> Weights[WeightSource]:
        than = self._held
        while True:
            if than is not None:
                self._serve_again()
            deadline = time.monotonic() + TURN_SECONDS
            newer = self._receiver.await_newer(self._config.stream, than, deadline=deadline, pulse=self._pulse_waiting)
            if newer is not None:
                return newer
            if self._is_draining():
                raise Draining

    def _pulse_waiting(self) -> None:
        """Between waits and between the chunks of a pull, however long that takes."""
        wanted = "the first weights" if self._held is None else f"weights newer than {self._held}"
        self._session.pulse(waiting=wanted, holds=self._held)

    def _take(self, weights: Weights[WeightSource]) -> None:
        with self._timeline.span("load", version=weights.id.version), self._loading(weights):
            self._model.load(weights.source)
        first = self._held is None
        self._held = weights.id
        if first:
            self._session.ready()

    def _loading(self, weights: Weights[WeightSource]) -> AbstractContextManager[None]:
        """Announced where it may take longer than a beat: the announcement itself costs a request."""
        num_bytes = weights.source.num_bytes if isinstance(weights.source, Folder) else 0
        if num_bytes < LARGE_BYTES:
            return nullcontext()
        return self._session.busy(f"loading {weights.id}", loading_seconds(num_bytes))

    def _work(self, batch: Batch) -> None:
        """Beats after every micro-batch: that keeps the lease, however long the whole batch takes."""
        tokens, response_lengths = batch.columns[Column.TOKENS], batch.columns[Column.RESPONSE_LENGTHS].values
        with self._timeline.span(self._config.task, r=batch.rollout_id, rows=len(batch.rows)):
            found = self._model.score(
                tokens, response_lengths, Output.LOG_PROBS, self._config.temperature, self._session.pulse
            )
            if self._mesh.is_source:
                self._queue.put(batch, {self._config.field: found}, weight=self._held)


def run_actor_fwd(rank: RankParts) -> None:
    """Serves log-probs of the policy until the pod drains."""
    _run(rank, pipeline.ACTOR_LOG_PROBS, Column.LOG_PROBS, interval=1)


def run_reference(rank: RankParts) -> None:
    """Serves log-probs of the reference until the pod drains: of a teacher, where the job has one."""
    interval, teacher = rank.spec.training.ref_update_interval, Teacher.of(rank.spec)
    _run(rank, pipeline.REFERENCE_LOG_PROBS, Column.REF_LOG_PROBS, interval=interval, teacher=teacher)


def _run(rank: RankParts, task: Task, field: str, *, interval: int | None, teacher: Teacher | None = None) -> None:
    role = rank.context.incarnation.key.role
    stream = TRAITS[role].stream
    assert stream is not None, f"{role} computes under weights that it follows"
    config = ForwardConfig(
        task=task.name,
        field=field,
        temperature=rank.spec.rollout.sampling.temperature,
        stream=stream,
        num_rollouts=rank.spec.rollout.num_rollouts,
        max_rows=rank.share,
        interval=interval,
    )
    with rank.loading("building the model", rank.spec.model.path if teacher is None else teacher.folder):
        report_inputs(rank)
        gang, tokenizer = form_group(rank.context, rank.session), build_tokenizer(rank.spec.model)
        if teacher is None:
            model = build_forward_model(rank.spec, tokenizer, role, gang)
        else:
            model = teacher.model(tokenizer, role, gang)
        mesh = Mesh.of(gang, [0] * gang.world)
    with closing(_receiver(rank, teacher)) as receiver:
        ForwardLoop(config, rank.session, rank.queue, receiver, model, rank.timeline, mesh).run()


def _receiver(rank: RankParts, teacher: Teacher | None) -> WeightReceiver:
    """Of the policy's weights, or of a teacher's, which come with each epoch anew."""
    if teacher is None:
        return build_receiver(rank.context, rank.session)
    return teacher.receiver(rank.session.welcome.restore.lineage)
