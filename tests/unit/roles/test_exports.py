"""What a rank of the actor announces before it reads or writes its part of a version: time that follows its bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rljob_api.timeouts import loading_seconds
from rljob_workers.roles.exports import ExportConfig, Exports
from rljob_workers.telemetry.timeline import Timeline

TIMEOUT = 300.0


class Session:
    """Notes what is announced."""

    def __init__(self, version: int) -> None:
        restore = SimpleNamespace(version=version, folder="3-e1" if version else None, lineage=1)
        self.welcome = SimpleNamespace(restore=restore)
        self.announced: dict[str, float] = {}

    @contextlib.contextmanager
    def busy(self, what: str, seconds: float) -> Iterator[None]:
        self.announced[what] = seconds
        yield


class Checkpoints:
    """Has a reference of version 0."""

    reference_version = 0

    def restored_reference(self, version: int, names: Any) -> dict[str, torch.Tensor]:
        del version, names
        return {}

    def keep_reference(self, *_: Any) -> None:
        pass

    write = wait = keep_reference


@pytest.mark.parametrize("version", [pytest.param(0, id="kept"), pytest.param(3, id="restored")])
@pytest.mark.parametrize(
    ("num_bytes", "seconds"),
    [
        pytest.param(2 * 10**5, TIMEOUT, id="a small part has as long as an update"),
        # Restored it may be read and kept anew.
        pytest.param(2 * 10**10, loading_seconds(4 * 10**10), id="20 GB have what a slow disk takes for them twice"),
    ],
)
def test_a_reference_version_has_the_time_of_its_bytes(
    tmp_path: Any, num_bytes: int, seconds: float, version: int
) -> None:
    session: Any = Session(version)
    staged = {"weight": torch.empty(num_bytes // 2, dtype=torch.bfloat16, device="meta")}
    trainer: Any = SimpleNamespace(
        weight_share=(0, 1), stage_weights=lambda: staged, stage_state=lambda: SimpleNamespace()
    )
    publisher: Any = SimpleNamespace(publish=lambda *_, **__: None)
    config = ExportConfig(10, 1, None, None, serves_reference=True, timeout_seconds=TIMEOUT)
    timeline = Timeline(tmp_path / "timeline.jsonl", "actor-0.0")
    checkpoints: Any = Checkpoints()
    with contextlib.closing(timeline):
        Exports(config, session, trainer, publisher, checkpoints, None, timeline, lambda _: staged, None).begin()
    assert session.announced["keeping reference version 0"] == pytest.approx(seconds, rel=0.01)
