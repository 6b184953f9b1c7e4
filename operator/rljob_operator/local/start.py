"""The start of `rljob run`: folder, view and supervisor put together. Called by the command line only."""

import asyncio
import errno
import gc
import time
from collections.abc import Sequence
from pathlib import Path

from rljob_api.machine.devices import machine_devices
from rljob_api.machine.room import FileSystem
from rljob_api.names import EXIT_FAILED, EXIT_SUCCEEDED
from rljob_api.spec import RLJob
from rljob_api.status import Phase
from rljob_operator.core import Reason
from rljob_operator.core.conditions import terminal
from rljob_operator.local import supervisor
from rljob_operator.local.device_placement import PodDevices, place, wanted_devices
from rljob_operator.local.earlier_run import Earlier
from rljob_operator.local.errors import RunRefused
from rljob_operator.local.journal import Journal, summary
from rljob_operator.local.memory_folders import memory_place, staged_bytes_of
from rljob_operator.local.run_folder import RunFolder
from rljob_operator.local.supervisor import Supervisor
from rljob_operator.local.view import View, make_view

_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNWRITABLE = (*_FULL, errno.EROFS, errno.EACCES, errno.EIO)


def run_job(job: RLJob, out: Path, *, earlier: Earlier, output: str, resume: str) -> int:
    """Runs the job to its end in the folder `out`; the exit code of the command. Raises RunRefused.

    `resume` is the command that goes on after an interruption.
    """
    folder = RunFolder.open(out, fresh=earlier is not Earlier.GOES_ON)
    try:
        devices = devices_of(job)  # before the earlier run is moved
        if earlier is Earlier.GOES_ON and folder.is_finished(job):
            folder.begin(job)
            make_view(output).close(_finished_already(job, folder))
            return EXIT_SUCCEEDED
        memory = memory_place(folder.path, staged_bytes_of(job))
        became = "" if earlier is Earlier.GOES_ON else folder.start_over(job, earlier)
        folder.begin(job)
        view = make_view(output)
        notes = ((Reason.EARLIER_RUN, became), (Reason.STAGED_ON_DISK, memory.note))
        return _supervise(job, folder, devices, view, resume, notes)
    finally:
        folder.close()


def devices_of(job: RLJob) -> PodDevices:
    """Which pod gets which of this machine's devices; they are searched only if it wants any. Raises RunRefused."""
    if not wanted_devices(job.spec.roles):
        return {}
    try:
        found = machine_devices()
    except ValueError as error:
        raise RunRefused(str(error)) from error
    return place(job.spec.roles, found.names, found.source)


def _supervise(
    job: RLJob, folder: RunFolder, devices: PodDevices, view: View, resume: str, notes: Sequence[tuple[Reason, str]]
) -> int:
    started = time.monotonic()
    # What is loaded by now lives to the end: a full collection in the middle of a restart would cost tens of ms.
    gc.freeze()
    try:
        with supervisor.held_back():
            view.open(job, str(folder.path))
            changed = folder.write_manifest(job)
            journal = Journal(folder.path, view, folder.status())
            for reason, message in (*notes, (Reason.SPEC_CHANGED, changed)):
                if message:
                    journal.note(time.time(), reason.value, message)
            exit_code = asyncio.run(Supervisor(job, folder, devices, journal).run())
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        view.close(_unwritable(folder, error, time.monotonic() - started, resume))
        return EXIT_FAILED
    view.close(summary(folder.path, journal.status, time.monotonic() - started, resume))
    return exit_code


def _unwritable(folder: RunFolder, error: OSError, seconds: float, resume: str) -> dict[str, object]:
    """Every process is ended by now; the status on the disk is an older one."""
    line = summary(folder.path, folder.status(), seconds, resume)
    is_full = error.errno in _FULL
    message = (
        f"{folder.path} cannot be written: {error.strerror}, on {FileSystem.of(folder.path)}. Everything was stopped;"
        f" the last recorded checkpoint stands. {'Free some space' if is_full else 'Make it writable'} and resume."
    )
    reason = "DiskFull" if is_full else "NotWritable"
    return {**line, "phase": Phase.FAILED.value, "reason": reason, "message": message}


def _finished_already(job: RLJob, folder: RunFolder) -> dict[str, object]:
    line = summary(folder.path, folder.status(), 0.0, "")
    ended = terminal(folder.status())
    if ended is not None and ended.reason == Reason.STOP_CONDITION_MET:
        cure = "Change or remove spec.stopWhen to train further, or start over with --fresh."
        return {**line, "message": f"an earlier run in this folder ended by spec.stopWhen: {ended.message}. {cure}"}
    cure = "Raise spec.rollout.numRollouts to train further, or start over with --fresh."
    count = job.spec.rollout.num_rollouts
    return {**line, "message": f"all {count} rollouts were trained by an earlier run in this folder. {cure}"}
