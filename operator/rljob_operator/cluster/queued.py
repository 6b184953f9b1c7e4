"""The queue of one job in a turn: its Workload as the job wants it, what Kueue says, and the writes that follow.

Called by the reconciler, once before a decision and once after it. Without a queue it does nothing.
"""

import asyncio
from collections.abc import Mapping, Sequence

from rljob_api.cluster import LABEL_PRIORITY, LABEL_QUEUE
from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_operator.build import MissingApi, Owner, Platform
from rljob_operator.build.workload import API_VERSION, QueueRequest, workload
from rljob_operator.core import Reason
from rljob_operator.core.queue import Hold, QueueFact
from rljob_operator.kube.job_workload import Brought, JobWorkload
from rljob_operator.kube.views import PodView
from rljob_operator.kube.workload_state import WantedWorkload
from rljob_operator.kube.workload_writes import standing_of
from rljob_operator.options import OperatorOptions


def queue_request(job: RLJob, labels: Mapping[str, str]) -> QueueRequest | None:
    """The queue that the spec names, or else the RLJob's label; None where neither does."""
    queue = job.spec.scheduling.queue_name or labels.get(LABEL_QUEUE, "")
    if not queue:
        return None
    return QueueRequest(queue, labels.get(LABEL_PRIORITY, ""), job.spec.scheduling.priority_class_name or "")


def missing(request: QueueRequest | None, options: OperatorOptions, platform: Platform) -> str | None:
    """Why no job can have a queue here."""
    if request is None or platform.workloads:
        return None
    given = f"spec.scheduling.queueName (or the label {LABEL_QUEUE}): {request.queue}"
    if not options.kueue.enabled:
        return (
            f"{given} needs Kueue, which this operator does not use. Install Kueue and set the chart's value "
            "kueue.enabled to true, or remove the field and the label."
        )
    return (
        f"{given} needs the API {API_VERSION}, which this cluster does not have. Install Kueue 0.15 or newer, or "
        "remove the field and the label."
    )


class QueuedJob:
    """One job's queue."""

    def __init__(
        self, writes: JobWorkload, options: OperatorOptions, platform: Platform, missed: asyncio.Event
    ) -> None:
        self._writes = writes
        self._options = options
        self._platform = platform
        self._missed = missed
        self._made: tuple[RLJob, QueueRequest, WantedWorkload] | None = None

    def forget(self) -> None:
        """Gives the memory of the Workload back; it is built again when it is asked for."""
        self._made = None

    def check(self, job: RLJob, labels: Mapping[str, str]) -> None:
        """Raises MissingApi where a job that has not begun cannot have its queue."""
        if sentence := missing(queue_request(job, labels), self._options, self._platform):
            raise MissingApi(sentence)

    async def look(self, job: RLJob, owner: Owner, labels: Mapping[str, str], status: RLJobStatus) -> QueueFact | None:
        """Kueue's decision; None for a job without a queue."""
        request = queue_request(job, labels)
        if request is None:
            return None
        if sentence := missing(request, self._options, self._platform):
            self._missed.set()
            return QueueFact(Hold(Reason.QUEUED, sentence.rstrip(".")))
        return await self._writes.look(self._wanted(job, owner, request), status)

    async def bring(
        self, job: RLJob, owner: Owner, labels: Mapping[str, str], status: RLJobStatus, pods: Sequence[PodView]
    ) -> Brought:
        """Writes what follows from `status`, which is persisted and carried out."""
        if not self._platform.workloads:
            return Brought()
        request = queue_request(job, labels)
        if request is None:
            await self._writes.withdraw()
            return Brought()
        standing = standing_of(status, num_pods=len(pods), by_user=job.spec.suspend)
        return await self._writes.bring(self._wanted(job, owner, request), request, standing)

    def _wanted(self, job: RLJob, owner: Owner, request: QueueRequest) -> WantedWorkload:
        if self._made is None or self._made[0] is not job or self._made[1] != request:
            wanted = WantedWorkload(workload(job, owner, self._options, request.queue), request.priority)
            self._made = (job, request, wanted)
        return self._made[2]
