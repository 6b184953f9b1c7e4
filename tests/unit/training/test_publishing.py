"""What a rank of the actor announces before it reads or writes its part of a version: time that follows its bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rljob_api.names import WeightVersion
from rljob_api.spec import RLJobSpec
from rljob_api.spec.restart import loading_seconds
from rljob_workers.models.blob import WeightShare
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.training.publishing import ExportConfig, Exports
from rljob_workers.training.saving import SaveConfig, Saves
from tests.unit.api.manifests import changed

TIMEOUT = 300.0


class Session:
    """Notes what is announced."""

    def __init__(self, version: int) -> None:
        restore = SimpleNamespace(version=version, folder="3-e1" if version else None, lineage=1)
        self.welcome = SimpleNamespace(restore=restore)
        self.announced: dict[str, float] = {}
        self.draining = False

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


@contextlib.contextmanager
def made(session: Any, num_bytes: int, folder: Path) -> Iterator[tuple[Saves, Exports]]:
    """Of a rank whose part has so many bytes."""
    staged = {"weight": torch.empty(num_bytes // 2, dtype=torch.bfloat16, device="meta")}
    share = WeightShare(0, 1, "layout")
    trainer: Any = SimpleNamespace(
        weight_share=share, export=None, stage_weights=lambda: staged, stage_state=lambda: SimpleNamespace()
    )
    publisher: Any = SimpleNamespace(publish=lambda *_, **__: None)
    checkpoints: Any = Checkpoints()
    config = ExportConfig(None, serves_reference=True, timeout_seconds=TIMEOUT)
    with contextlib.closing(Timeline(folder / "timeline.jsonl", "actor-0.0")) as timeline:
        saves = Saves(SaveConfig(10, 1, None, TIMEOUT), session, trainer, checkpoints, None, timeline)
        yield saves, Exports(config, session, publisher, checkpoints, timeline, lambda _: staged, None)


@pytest.mark.parametrize(
    ("reference", "serves"), [(None, False), ({}, True), ({"modelPath": "/models/teacher"}, False)]
)
def test_versions_are_retained_for_a_reference_that_is_one(reference: dict[str, str] | None, serves: bool) -> None:
    changes = {"spec.algorithm.kl.coefficient": 0, "spec.roles.reference": reference}
    assert ExportConfig.of(RLJobSpec.model_validate(changed(changes)["spec"])).serves_reference is serves


@pytest.mark.parametrize("version", [pytest.param(0, id="kept"), pytest.param(3, id="restored")])
@pytest.mark.parametrize(
    ("num_bytes", "seconds"),
    [
        pytest.param(2 * 10**5, TIMEOUT, id="a small part has as long as an update"),
        # Restored it may be read and kept again.
        pytest.param(2 * 10**10, loading_seconds(4 * 10**10), id="20 GB have what a slow disk takes for them twice"),
    ],
)
def test_a_reference_version_has_the_time_of_its_bytes(
    tmp_path: Path, num_bytes: int, seconds: float, version: int
) -> None:
    session = Session(version)
    with made(session, num_bytes, tmp_path) as (saves, exports):
        saves.begin()
        exports.begin(saves.weights)
    assert session.announced["keeping reference version 0"] == pytest.approx(seconds, rel=0.01)


def test_checkpoints_that_are_waited_for_have_the_time_of_their_bytes(tmp_path: Path) -> None:
    """10 billion parameters in bfloat16: with moments and exact weights 140 GB, behind another checkpoint's."""
    session = Session(0)
    with made(session, 2 * 10**10, tmp_path) as (saves, exports):
        saves.begin()
        exports.begin(saves.weights)
        saves.reach(WeightVersion(1))
        exports.publish(saves.weights)
        saves.save_if_due()
        assert "saving version 1" not in session.announced, "a rank that is stopped meanwhile is found as at any time"
        saves.reach(WeightVersion(2))
        session.draining = True
        saves.save_if_due()
        saves.reach(WeightVersion(3))
        saves.finish()
    assert session.announced["saving version 0"] == loading_seconds(2 * 14 * 10**10)
    assert session.announced["saving version 2"] == loading_seconds(2 * 14 * 10**10)
    assert session.announced["saving the last version"] == loading_seconds(2 * 14 * 10**10)
