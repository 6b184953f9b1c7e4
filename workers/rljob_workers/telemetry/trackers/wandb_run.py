"""Weights & Biases: one run by its id, online where there is a key and its server answers, and offline elsewhere.

Its history only grows, so that steps that come again are further rows: the x axis is `step`, and of two rows of a step
the later one has the higher `step/epoch`. That of an evaluation is `evaluation/version`, and its row comes when it is
over, after rows of later steps. What is offline lies in the run folder, for `wandb sync`.
"""

from __future__ import annotations

import netrc
import os
import socket
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import wandb

from rljob_workers.telemetry.trackers.base import Line, TrackedRun, Tracker

SERVER = "https://api.wandb.ai"
CONNECT_SECONDS = 5.0
"""A server that does not take a connection within it is not there: the run is offline."""
_SAMPLES = ("step", "epoch", "reward", "prompt", "response", "responseTokens", "finishReason", "advantage")
_VERSION = "evaluation/version"
_EVENTS = ("time", "reason", "role", "scope", "message")


class WandbRun(Tracker):
    """Id and name are the run's; project and all else are as wandb's own variables say, the project else `rljob`."""

    def __init__(self, run: TrackedRun) -> None:
        mode = os.environ.get("WANDB_MODE") or ("online" if _can_be_online() else "offline")
        print(f"wandb: the run {run.id} is {mode}", flush=True)  # noqa: T201 -- its log
        self._run = wandb.init(
            id=run.id,
            name=run.id,
            project=os.environ.get("WANDB_PROJECT") or "rljob",
            config=dict(run.config),
            dir=str(run.folder),
            mode=mode,
            resume="allow",
            settings=wandb.Settings(x_disable_stats=True, console="off", disable_git=True, save_code=False),
        )
        self._number = run.given_lines
        """Number of the next row. It grows over processes: a part that was offline is sent into the same run."""
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self._run.define_metric(_VERSION)
        self._by_version: set[str] = set()
        """Figures whose axis is defined to be the version."""

    def forget(self, step: int) -> None:
        """See the base: it cannot."""

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        """See the base."""
        self._log({"step": step, **figures})

    def forget_evaluations(self, version: int) -> None:
        """See the base: it cannot."""

    def evaluation(self, version: int, figures: Mapping[str, float]) -> None:
        """See the base."""
        for name in figures.keys() - self._by_version:  # a name goes before the pattern of all
            self._run.define_metric(name, step_metric=_VERSION)
            self._by_version.add(name)
        self._log({_VERSION: version, **figures})

    def samples(self, step: int, samples: Sequence[Line]) -> None:
        """See the base."""
        rows = [[step, *(line.get(name) for name in _SAMPLES[1:])] for line in samples]
        self._log({"step": step, "samples": wandb.Table(columns=list(_SAMPLES), data=rows)})

    def events(self, first: int, events: Sequence[Line]) -> None:
        """See the base."""
        rows = [[line.get(name) or "" for name in _EVENTS] for line in events]
        self._log({"events": wandb.Table(columns=list(_EVENTS), data=rows), "events_before": first})

    def flush(self) -> None:
        """See the base. Its own process has them, and writes them to the disk before it sends them."""

    def close(self) -> None:
        """See the base. Blocks until all is sent, or on the disk."""
        self._run.finish()

    def _log(self, row: Mapping[str, object]) -> None:
        """A call is at least one line, so that the numbers of this process end before those of the next."""
        # A row with a step of its own is else retained until the next one comes, and lost with this process.
        self._run.log(dict(row), step=self._number, commit=True)
        self._number += 1


def _can_be_online() -> bool:
    address = urlsplit(os.environ.get("WANDB_BASE_URL") or SERVER)
    host = address.hostname or ""
    if not os.environ.get("WANDB_API_KEY") and not _has_login(host):
        return False
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _has_login(host: str) -> bool:
    """As `wandb login` leaves it."""
    try:
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
