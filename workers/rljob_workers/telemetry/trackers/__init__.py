"""Trackers of a run: a process for each, which gives its tracker what the run folder gets.

No process of a job knows this room, and none waits for it: `rljob run` starts the processes (`rljob_operator.local`),
on a cluster they are pods of their own (`pod`), and a tracker that hangs or dies costs the job nothing. `base` is what
a tracker must do, `feed` what it is given and when.
"""

from __future__ import annotations

from rljob_api.spec import Tracker as TrackerName
from rljob_workers.telemetry.trackers.base import TrackedRun, Tracker


def open_tracker(name: TrackerName, run: TrackedRun) -> Tracker:
    """Imports the tracker's package: none of the others needs to be there."""
    match name:
        case TrackerName.TENSORBOARD:
            from rljob_workers.telemetry.trackers.tensorboard_files import TensorBoardFiles

            return TensorBoardFiles(run)
        case TrackerName.TRACKIO:
            from rljob_workers.telemetry.trackers.trackio_run import TrackioRun

            return TrackioRun(run)
        case TrackerName.WANDB:
            from rljob_workers.telemetry.trackers.wandb_run import WandbRun

            return WandbRun(run)
