"""A tracker's pod reads what the coordinator's has written: one run, and no step twice, whichever of them is killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_api import cluster, generations
from rljob_api.names import Role
from rljob_api.spec import RLJob, Tracker
from rljob_api.wire.observation import EventKind
from rljob_workers.dcs.membership.coordinator_http import CoordinatorClient
from rljob_workers.telemetry.trackers.feed import Cursor, cursor_file
from tests.integration.dcs.world import World, eventually, job, make_step_report
from tests.integration.launcher.pods import hold_port, number_of
from tests.integration.preloaded.client import Forked, fork_program
from tests.integration.transfer_queue.servers import Servers

pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed: make install brings it")

NAME = Tracker.TENSORBOARD


class PodWorld(World):
    """The same with the containers' entry points: a folder stands in for `/`, in which lies the checkpoint volume."""

    def __init__(self, servers: Servers, folder: Path, manifest: RLJob) -> None:
        super().__init__(servers, folder, manifest)
        self.listener.close()
        self.listener = hold_port()  # the container listens itself
        url = f"http://127.0.0.1:{number_of(self.listener)}"
        self.endpoints = self.endpoints.model_copy(update={"coordinator": url})
        self.client = CoordinatorClient(self.endpoints)
        (folder / "endpoints.json").write_text(self.endpoints.model_dump_json())
        self.run = folder / cluster.RUN_DIR.lstrip("/")
        self.run.mkdir(parents=True)
        job_file = folder / cluster.JOB_FILE.lstrip("/")
        job_file.parent.mkdir(parents=True)
        job_file.write_text(manifest.model_dump_json())
        self.tracker_log = folder / "tracker.log"
        self._environment = {
            "RLJOB_NAME": "test",
            "RLJOB_NAMESPACE": "default",
            "RLJOB_POD_IP": "127.0.0.1",
            "RLJOB_ROOT": str(folder),
            "RLJOB_ENDPOINTS": str(folder / "endpoints.json"),
        }

    def start(self, **environment: str) -> None:
        port = number_of(self.listener)
        with self.log.open("ab") as log:
            self.process = fork_program(
                "rljob_workers.dcs.coordinator.pod",
                ["--host", "127.0.0.1", "--port", str(port), "--probe-port", "0", "--metrics-port", "0"],
                output=log,
                environment={**self._environment, **environment},
            )

    def start_tracker(self, name: str = NAME.value) -> Forked:
        environment = {**self._environment, "RLJOB_TRACKER": name}
        with self.tracker_log.open("ab") as log:
            return fork_program("rljob_workers.telemetry.trackers.pod", [], output=log, environment=environment)

    def lines(self, file: str) -> list[dict[str, Any]]:
        path = self.run / file
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def written(self) -> list[tuple[int, int]]:
        return [(line["epoch"], line["step"]) for line in self.lines("metrics.jsonl")]

    def given(self) -> int:
        """Lines of metrics that the tracker has."""
        return Cursor.read(cursor_file(self.run, NAME)).metrics.lines


@pytest.fixture
def pods(shared_servers: Servers, tmp_path: Path) -> Iterator[PodWorld]:
    shared_servers.wipe()
    manifest = job(heartbeat_seconds=3)
    telemetry = manifest.spec.telemetry.model_copy(update={"report_to": [NAME]})
    spec = manifest.spec.model_copy(update={"telemetry": telemetry})
    world = PodWorld(shared_servers, tmp_path, manifest.model_copy(update={"spec": spec}))
    world.start()
    try:
        yield world
    finally:
        world.stop()


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def end(tracker: Forked) -> None:
    """As the kubelet ends it when its job has ended: it gives the rest."""
    tracker.send_signal(signal.SIGTERM)
    assert tracker.wait(240.0) == 0


def test_one_run_without_a_doubled_step_whatever_is_killed(pods: PodWorld) -> None:
    tracker = pods.start_tracker()
    pods.begin()
    first = pods.rank(Role.ACTOR)
    for step in range(4):
        first.report_step(make_step_report(first, step).model_copy(update={"reward": 10.0 + step}))
    eventually(lambda: pods.given() == 4, "four steps at the tracker")
    named = (pods.run / cluster.RUN_NAME_FILE).read_text()

    tracker.send_signal(signal.SIGKILL)
    tracker.wait()
    first.report_step(make_step_report(first, 4).model_copy(update={"reward": 14.0}))
    eventually(lambda: len(pods.written()) == 5, "the fifth step on the volume")
    with (pods.run / "metrics.jsonl").open("a") as torn:
        torn.write('{"step": 5, "epo')  # as a coordinator leaves it that was killed within a line
    pods.restart()
    pods.raise_epoch(2)  # which takes steps 2 to 4 back
    pods.order(2)
    second = pods.rank(Role.ACTOR, epoch=2)
    for step in (2, 3):
        second.report_step(make_step_report(second, step).model_copy(update={"reward": 20.0 + step}))
    second.report_step(make_step_report(second, 3))  # whose answer was lost
    sample = {
        "reward": 1.0,
        "responseTokens": 1,
        "finishReason": "stop",
        "epoch": 2,
        "rollout": 3,
        "prompt": "1 + 1",
        "response": "2",
    }
    (pods.run / generations.FILE).write_text(json.dumps(sample) + "\n")
    tracker = pods.start_tracker()
    whole = [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 3)]
    eventually(lambda: pods.given() == len(whole) + 1, "every step at the tracker, and the line that was torn")
    end(tracker)

    lines = (pods.run / "metrics.jsonl").read_text().splitlines()
    assert [line for line in lines if not line.endswith("}")] == ['{"step": 5, "epo']
    assert [(line["epoch"], line["step"]) for line in map(json.loads, lines[:5] + lines[6:])] == whole
    files = pods.run / "trackers/tensorboard"
    found = read(files / "metrics").Scalars("step/reward")
    assert [(one.step, one.value) for one in found] == [(0, 10.0), (1, 11.0), (2, 22.0), (3, 23.0)]
    assert [one.step for one in read(files / "samples").Tensors("sample/0")] == [3]
    events = read(files / "events")
    assert len(events.Tensors("config")) == 1, "of one run"
    texts = [one.tensor_proto.string_val[0].decode() for one in events.Tensors("events")]
    assert sum("**EpochOpened**" in text for text in texts) == 2
    assert len(texts) == len(set(texts)) == len(pods.lines("events.jsonl"))
    assert {kind for kind in EventKind if any(f"**{kind.value}**" in text for text in texts)}.isdisjoint(
        {EventKind.STEP_TRAINED, EventKind.PUBLISHED}
    )
    assert (pods.run / cluster.RUN_NAME_FILE).read_text() == named


def test_an_image_without_the_tracker_states_it(pods: PodWorld) -> None:
    missing = pods.start_tracker("wandb")
    assert missing.wait(240.0) == 64
    assert pods.tracker_log.read_text().startswith("the image has no wandb. Name one in spec.image that has it")
