"""A damaged checkpoint is left for the newest intact one, by the coordinator alone, and nothing of it is deleted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rljob_api.names import Role
from rljob_api.wire.failures import FailureKind
from rljob_api.wire.observation import EventKind
from rljob_workers.dcs.checkpoints.store import CheckpointStore, build_checkpoint_store
from rljob_workers.dcs.errors import CheckpointUnreadable, DamageReported
from tests.integration.dcs.test_checkpoints import model, published, state
from tests.integration.dcs.world import PATIENCE_SECONDS, World, eventually
from tests.unit.dcs.test_checkpoint_on_disk import flip, flip_a_digest, give_an_io_error, take_away, truncate
from tests.weights import weight


@pytest.fixture
def root(world: World) -> Path:
    return Path(world.endpoints.run_dir) / "checkpoints"


def record_three(world: World) -> list[str]:
    """Checkpoints 0 to 2 of epoch 1, each with a cursor of its own; their folders."""
    spec = world.job.spec
    retained = spec.checkpoint.model_copy(update={"keep": 3})
    world.job = world.job.model_copy(update={"spec": spec.model_copy(update={"checkpoint": retained})})
    world.begin()
    session = world.rank(Role.ACTOR)
    store = build_checkpoint_store(session.context, session)
    store.keep_reference(0, model(0))
    for version in range(3):
        published(world, version)
        tickets = json.dumps({"cursor": 10 * version, "front": [], "draws": [], "kills": {}}).encode()
        store.write(weight(version), model(version), state(version), tickets)
        store.wait()
    return [f"{version}-e1-{session.incarnation.id}" for version in range(3)]


def begun(world: World, epoch: int) -> tuple[CheckpointStore, str]:
    """The store of the actor in a new epoch, and the folder that this begins with."""
    restore = world.raise_epoch(epoch)
    world.order(epoch)
    session = world.rank(Role.ACTOR, epoch=epoch)
    assert restore.folder is not None
    return build_checkpoint_store(session.context, session), restore.folder


def cursor(world: World) -> int:
    with world.servers.control.admin() as admin:
        return int(admin.hget("q:meta", "cursor") or 0)


def test_the_newest_intact_one_is_gone_on_from_and_where_none_is_the_job_fails_by_name(
    world: World, root: Path
) -> None:
    folders = record_three(world)
    with world.servers.control.admin() as admin:
        admin.hset("q:meta", "cursor", 33)
    truncate(root / folders[2] / "actor-00000.safetensors")
    flip(root / folders[1] / "tickets.json")
    store, folder = begun(world, 2)
    assert folder == folders[2]
    for _ in range(2):  # as if two ranks found it
        with pytest.raises(DamageReported, match=f"{folder}/actor-00000.safetensors has checksum"):
            store.verified(folder)
        (failure,) = world.status().failures
        assert (failure.kind, failure.epoch) == (FailureKind.CHECKPOINT_DAMAGED, 2)
    assert failure.message.endswith("the job goes on from checkpoint 0")  # the table of draws is read at once
    world.acknowledge(failure.id)
    world.restart()

    store, folder = begun(world, 3)
    assert (folder, cursor(world), world.status().recorded) == (folders[0], 0, 0)
    assert store.verified(folder) == root / folder
    reported = " ".join(event.message for event in world.reported(EventKind.CHECKPOINT_DAMAGED))
    assert f"{folders[2]}/actor-00000.safetensors has checksum" in reported
    assert f"{folders[1]}/tickets.json does not have checksum" in reported
    assert "epoch 3 begins with version 0 instead" in reported
    assert not (root / folders[2]).exists()
    assert (root / f"{folders[2]}.damaged" / "model.safetensors").exists()
    assert (root / f"{folders[1]}.damaged" / "tickets.json").exists()
    assert json.loads((root / "record.json").read_text())["folder"] == folder
    assert (root / "latest").resolve() == root / folder

    published(world, 1)  # what is trained from here on is recorded under the same numbers
    store.write(weight(1, lineage=3), model(1), state(1), b'{"cursor": 5, "front": [], "draws": [], "kills": {}}')
    store.wait()
    take_away(root / folder / "model.safetensors")
    store, newest = begun(world, 4)
    assert newest.startswith("1-e3-")
    take_away(next((root / "reference").iterdir()))  # which both folders name
    with pytest.raises(DamageReported, match=r"reference/0-e1-.* is not there"):
        store.verified(newest)
    world.acknowledge(*(failure.id for failure in world.status().failures))
    store, oldest = begun(world, 5)
    assert oldest == folder
    with pytest.raises(DamageReported):
        store.verified(oldest)
    (failure,) = world.status().failures
    assert failure.kind is FailureKind.REPORTED
    assert failure.message.startswith(f"no checkpoint of this job is intact: checkpoint: {root}")
    assert f"Restore {oldest} from a copy, then resume the job; nothing was deleted" in failure.message
    assert (root / oldest).exists()
    assert (root / f"{newest}.damaged").exists()


def test_an_io_error_is_no_damage(world: World, root: Path) -> None:
    folders = record_three(world)
    store, folder = begun(world, 2)
    give_an_io_error(root / folder / "model.safetensors")
    with pytest.raises(CheckpointUnreadable, match="Input/output error"):
        store.verified(folder)
    assert world.status().failures == []
    assert folder == folders[2]
    assert (root / folder).is_dir()


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        *((file, harm) for file in ("record.json", "tickets.json") for harm in (truncate, take_away)),
        ("record.json", flip_a_digest),
    ],
)
def test_a_lost_control_state_is_made_again_from_what_is_intact(
    world: World, root: Path, file: str, harm: Callable[[Path], None]
) -> None:
    folders = record_three(world)
    harm(root / file if file == "record.json" else root / folders[2] / file)
    world.kill()
    world.launchers.clear()  # they register again
    world.servers.renew_control()
    world.start()
    eventually(lambda: world.status().earlier_epoch == 1, "the new control Redis to be open")
    expected = 2 if file == "record.json" else 1
    store, folder = begun(world, 2)
    assert (folder, world.status().recorded, cursor(world)) == (folders[expected], expected, 10 * expected)
    assert store.verified(folder) == root / folder
    assert json.loads((root / "record.json").read_text())["folder"] == folders[expected]
    if file == "tickets.json":
        assert (root / f"{folders[2]}.damaged").exists()


def test_damage_is_reported_by_the_coordinator_that_comes_after_the_one_that_found_it(
    world: World, root: Path, tmp_path: Path
) -> None:
    """It died with the epoch open; the supervisor asks for that again."""
    folders = record_three(world)
    take_away(root / folders[2] / "tickets.json")
    world.kill()
    world.servers.renew_control()
    world.start(RLJOB_FAILPOINTS="coordinator.before_settling=1", RLJOB_FAILPOINTS_DIR=str(tmp_path))
    raising = threading.Thread(target=lambda: world.raise_epoch(2))
    raising.start()
    assert world.process is not None
    world.process.wait(PATIENCE_SECONDS)
    assert world.process.poll() is not None
    assert (root / folders[2]).exists()
    world.start()
    raising.join(PATIENCE_SECONDS)
    world.raise_epoch(2)
    messages = [event.message for event in world.reported(EventKind.CHECKPOINT_DAMAGED)]
    assert len(messages) == 1, messages
    assert f"It is kept as {folders[2]}.damaged; epoch 2 begins with version 1 instead" in messages[0]
    assert (root / f"{folders[2]}.damaged").exists()
    assert json.loads((root / "record.json").read_text())["folder"] == folders[1]
