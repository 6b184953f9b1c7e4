"""The job that each epoch runs with: kept in the control Redis with the epoch, handed to launchers.

Called by the coordinator in its thread, and by `serving` before there is one. A job that is to come is kept before its
epoch is raised: the coordinator is made anew for it first, since its rooms are built for one job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rljob_api.base import WireModel
from rljob_api.names import Epoch
from rljob_api.spec import RLJob
from rljob_workers.dcs.coordinator.store import Change, Table

_IN_FORCE, _TO_COME = "job", "job_to_come"


class EpochJob(WireModel):
    """What an epoch runs with."""

    epoch: Epoch
    job: RLJob


def job_changes(epoch: Epoch, job: RLJob | None) -> Sequence[Change]:
    """What to store with an epoch that is opened; None: as before."""
    if job is None:
        return ()
    text = EpochJob(epoch=epoch, job=job).model_dump_json()
    return Change(Table.STATE, _IN_FORCE, text), Change(Table.STATE, _TO_COME, None)


def note_job_to_come(epoch: Epoch, job: RLJob) -> Change:
    """What to store before the coordinator is made anew for `job`."""
    return Change(Table.STATE, _TO_COME, EpochJob(epoch=epoch, job=job).model_dump_json())


def job_to_work_by(state: Mapping[str, str]) -> RLJob | None:
    """The job that the coordinator works by: the one to come, else the one in force; None: the file's."""
    text = state.get(_TO_COME) or state.get(_IN_FORCE)
    return None if text is None else EpochJob.model_validate_json(text).job


def job_in_force(state: Mapping[str, str]) -> RLJob | None:
    """The job that the open epoch runs with; None: the one that everybody has a file of."""
    text = state.get(_IN_FORCE)
    return None if text is None else EpochJob.model_validate_json(text).job


def runs_alike(one: RLJob, other: RLJob) -> bool:
    """Whether a coordinator that was made for one serves the other too."""
    return one.spec == other.spec and one.metadata.name == other.metadata.name
