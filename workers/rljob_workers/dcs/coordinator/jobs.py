"""The job that each epoch runs with: kept in the control Redis with the epoch, handed to launchers.

Called by the coordinator in its thread, and by `serving` before there is one. A job that is to come is kept before its
epoch is raised: the coordinator is made anew for it first, since its rooms are built for one job.
"""

from __future__ import annotations

from collections.abc import Sequence

from rljob_api.names import Epoch
from rljob_api.spec import RLJob
from rljob_workers.dcs.coordinator.records import JOB_IN_FORCE, JOB_TO_COME, EpochJob
from rljob_workers.dcs.coordinator.store import Store
from rljob_workers.dcs.coordinator.table import Change


def job_changes(epoch: Epoch, job: RLJob | None) -> Sequence[Change]:
    """What to store with an epoch that is opened; None: as before."""
    if job is None:
        return ()
    return JOB_IN_FORCE.put(EpochJob(epoch=epoch, job=job)), JOB_TO_COME.drop()


def note_job_to_come(epoch: Epoch, job: RLJob) -> Change:
    """What to store before the coordinator is made anew for `job`."""
    return JOB_TO_COME.put(EpochJob(epoch=epoch, job=job))


def job_to_work_by(store: Store) -> RLJob | None:
    """The job that the coordinator works by: the one to come, else the one in force; None: the file's."""
    known = store.value(JOB_TO_COME) or store.value(JOB_IN_FORCE)
    return None if known is None else known.job


def job_in_force(store: Store) -> RLJob | None:
    """The job that the open epoch runs with; None: the one that everybody has a file of."""
    known = store.value(JOB_IN_FORCE)
    return None if known is None else known.job


def runs_alike(one: RLJob, other: RLJob) -> bool:
    """Whether a coordinator that was made for one serves the other too."""
    return one.spec == other.spec and one.metadata.name == other.metadata.name
