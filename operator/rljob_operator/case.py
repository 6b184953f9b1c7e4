"""A case: what a turn of the operator begins with, the job as the API server has it and the spec that it goes by."""

from dataclasses import dataclass

from rljob_api.spec import RLJob
from rljob_api.status import AcceptedStatus, RLJobStatus
from rljob_operator.adapters.api import Json
from rljob_operator.adapters.job_memory import JobMemory
from rljob_operator.adapters.views import JobKey
from rljob_operator.build import Owner
from rljob_operator.core import RefusedSpec


@dataclass(frozen=True, slots=True)
class Case:
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


def generation_of(raw: Json) -> int:
    """Of the newest spec."""
    generation: int = raw["metadata"].get("generation", 1)
    return generation
