"""Checkpoints: durable before they are recorded, recorded before anything older goes, verified before they are used."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rljob_api import failpoints
from rljob_api.names import Role
from rljob_api.wire.failures import FailureKind
from rljob_api.wire.observation import EventKind
from rljob_workers.dcs.checkpoints import attempt
from rljob_workers.dcs.checkpoints.attempt import settle
from rljob_workers.dcs.checkpoints.on_disk import read_record, share_of_files
from rljob_workers.dcs.checkpoints.store import CheckpointStore, build_checkpoint_store
from rljob_workers.dcs.errors import CheckpointDamaged, IncarnationOver
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.models.blob import WHOLE, WeightShare
from rljob_workers.models.slices import EXP_AVG, StateShare, StateSlice
from tests.integration.dcs.world import World, read_json
from tests.power_cuts import noted_syncs
from tests.weights import weight

TICKETS = b'{"cursor": 3, "front": [], "draws": [], "kills": {}}'


def model(seed: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((8, 8), float(seed)), "b": torch.arange(3)}


def state(seed: int, rank: int = 0) -> StateShare:
    moments = torch.full((4,), float(seed))
    own = {"random": torch.tensor([rank])}
    return StateShare([StateSlice(EXP_AVG, "b", (4,), (0,), moments)] if rank == 0 else [], own, {"steps": seed})


def save(store: CheckpointStore, version: int, lineage: int = 1) -> None:
    store.write(weight(version, lineage), model(version), state(version), TICKETS)


def folders(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir() and path.name not in ("reference", "latest"))


@pytest.fixture
def root(world: World) -> Path:
    return Path(world.endpoints.run_dir) / "checkpoints"


@pytest.fixture
def actor(world: World) -> RankSession:
    world.begin()
    return world.rank(Role.ACTOR)


def published(world: World, version: int) -> None:
    """As if `version` had been trained and published: what recording it asks for."""
    with world.servers.control.admin() as admin:
        admin.hset("q:meta", "published", version)


def test_a_checkpoint_is_recorded_with_all_its_files(world: World, actor: RankSession, root: Path) -> None:
    store = build_checkpoint_store(actor.context, actor)
    save(store, 0)
    store.wait()
    name = f"0-e1-{actor.incarnation.id}"
    assert folders(root) == [name]
    assert torch.equal(load_file(root / name / "model.safetensors")["w"], model(0)["w"])
    assert torch.equal(load_file(root / name / "actor-00000.safetensors")["exp_avg/b"], torch.zeros(4))
    slices = {"exp_avg/b": {"shape": [4], "offset": [0]}}
    assert read_json(root / name / "actor-00000.json") == {"values": {"steps": 0}, "slices": slices}
    assert (root / name / "tickets.json").read_bytes() == TICKETS
    record = read_json(root / "record.json")
    assert (record["folder"], record["id"]["version"], record["ancestry"]) == (name, 0, {"1": -1})
    assert set(record["checksums"]) == {"checksums.json"}
    state_of_rank = {"actor-00000.safetensors", "actor-00000.json"}
    assert set(read_json(root / name / "checksums.json")) == {"model.safetensors", "tickets.json", *state_of_rank}
    assert (world.status().recorded, world.status().recorded_folder) == (0, name)
    assert len(world.reported(EventKind.RECORDED)) == 1
    assert store.verified(name) == root / name
    assert (root / "latest").readlink() == Path(name)


def test_a_power_cut_takes_nothing_of_a_checkpoint_that_is_about_to_be_recorded(
    world: World, actor: RankSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the record on a restart counts on the folder: before it, all of it is on the disk."""
    store = build_checkpoint_store(actor.context, actor)
    lost: list[str | None] = []

    def look(window: str) -> None:
        if window == "checkpoint.before_record":
            (name,) = folders(root)
            files = [*(root / name).iterdir(), *(root / "reference").iterdir()]
            lost.extend([disk.lost_name(root / name), *map(disk.lost, files)])

    monkeypatch.setattr(attempt, "failpoint", look)
    with noted_syncs() as disk:
        store.keep_reference(0, model(0))
        save(store, 0)
        store.wait()
        assert lost == [None] * len(lost)
        assert len(lost) >= 8, "a folder, its files and the reference version that it names"
        assert disk.lost(root / "record.json") is None


def test_only_the_newest_recorded_folders_stay(world: World, actor: RankSession, root: Path) -> None:
    store = build_checkpoint_store(actor.context, actor)
    for version in range(5):
        published(world, version)
        save(store, version)
        store.wait()
    incarnation = actor.incarnation.id
    assert folders(root) == [f"3-e1-{incarnation}", f"4-e1-{incarnation}"]


def test_a_checkpoint_that_is_due_while_one_is_in_flight_waits_and_is_not_left_out(
    world: World, actor: RankSession, root: Path
) -> None:
    store = build_checkpoint_store(actor.context, actor)
    published(world, 3)
    for version in range(4):
        save(store, version)
    store.wait()
    assert len(world.reported(EventKind.RECORDED)) == 4
    assert world.status().recorded == 3


def test_the_writer_of_an_epoch_that_is_over_records_nothing_and_states_it(
    world: World, actor: RankSession, root: Path
) -> None:
    store = build_checkpoint_store(actor.context, actor)
    world.raise_epoch(2)
    save(store, 0)
    with pytest.raises(IncarnationOver, match="epoch 2 is open"):
        store.wait()
    assert not (root / "record.json").exists()
    assert world.status().recorded is None


def test_recording_outlives_a_kill_of_the_coordinator(world: World, actor: RankSession, root: Path) -> None:
    store = build_checkpoint_store(actor.context, actor)
    world.kill()
    save(store, 0)
    world.start()
    store.wait()
    assert world.status().recorded == 0


@pytest.mark.parametrize(
    ("place", "recorded", "left"),
    [
        pytest.param("checkpoint.before_rename", 0, [".partial-1", "0"], id="a folder that was never renamed"),
        pytest.param("checkpoint.before_record", 0, ["0", "1"], id="a folder that was never recorded"),
        pytest.param("checkpoint.after_record", 1, ["0", "1"], id="a record before anything is deleted"),
    ],
)
def test_death_at_every_place_leaves_a_record_that_can_be_restored(
    world: World, actor: RankSession, root: Path, tmp_path: Path, place: str, recorded: int, left: list[str]
) -> None:
    store = build_checkpoint_store(actor.context, actor)
    save(store, 0)
    store.wait()
    published(world, 1)
    assert _dies_at(place, world, tmp_path) == signal.SIGKILL
    assert [name.partition("-e")[0] for name in folders(root)] == left
    restore = world.raise_epoch(2)
    world.order(2)
    assert restore.version == recorded
    assert restore.folder is not None
    later = world.rank(Role.ACTOR, epoch=2)
    resumed = build_checkpoint_store(later.context, later)
    folder = resumed.verified(restore.folder)
    assert folder == root / restore.folder
    assert torch.equal(load_file(folder / "model.safetensors")["w"], model(recorded)["w"])
    published(world, recorded + 1)
    save(resumed, recorded + 1, lineage=2)
    resumed.wait()
    assert folders(root) == sorted([restore.folder, f"{recorded + 1}-e2-{later.incarnation.id}"])


def _dies_at(place: str, world: World, folder: Path) -> int:
    """Writes version 1 in a rank of its own, which is killed at `place`; the signal it died of."""
    pid = os.fork()
    if pid == 0:
        failpoints._ARMED[place] = 1
        os.environ["RLJOB_FAILPOINTS_DIR"] = str(folder)
        session = RankSession(world.context(world.incarnation(Role.ACTOR)))
        store = build_checkpoint_store(session.context, session)
        save(store, 1)
        store.wait()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WTERMSIG(status)


def test_files_are_dealt_to_ranks_by_size() -> None:
    sizes = {Path("a"): 1, Path("b"): 1, Path("model"): 70, Path("state 0"): 60, Path("state 1"): 60}
    shares = [[path.name for path in share_of_files(sizes, rank, 2)] for rank in range(2)]
    assert shares == [["model", "state 1", "b"], ["state 0", "a"]]


def test_the_reference_version_comes_back_with_the_checkpoint_that_used_it(
    world: World, actor: RankSession, root: Path
) -> None:
    store = build_checkpoint_store(actor.context, actor)
    store.keep_reference(0, model(0))
    save(store, 0)
    published(world, 1)
    save(store, 1)
    store.wait()
    store.keep_reference(2, model(2))  # published after the last record: a past that the restore leaves
    restore = world.raise_epoch(2)
    world.order(2)
    assert restore.folder is not None
    later = world.rank(Role.ACTOR, epoch=2)
    resumed = build_checkpoint_store(later.context, later)
    assert torch.equal(resumed.restored_reference(0, {"w", "b"})["w"], model(0)["w"])
    with pytest.raises(CheckpointDamaged, match=r"has no reference version 2 with .*names 0"):
        resumed.restored_reference(2, {"w", "b"})
    published(world, 2)
    save(resumed, 2, lineage=2)
    resumed.wait()
    assert [path.name.partition("-")[0] for path in (root / "reference").iterdir()] == ["0"]


def test_a_reference_version_goes_when_no_retained_folder_names_it(
    world: World, actor: RankSession, root: Path
) -> None:
    store = build_checkpoint_store(actor.context, actor)
    for version in range(4):
        published(world, version)
        store.keep_reference(version, model(version))
        save(store, version)
        store.wait()
    files = sorted(path.name.partition("-")[0] for path in (root / "reference").iterdir())
    assert files == ["2", "3"]
    assert json.loads((root / "record.json").read_text())["id"]["version"] == 3


def test_a_incarnation_that_was_stopped_after_its_record_undoes_nothing_of_a_later_epoch(
    world: World, actor: RankSession, root: Path
) -> None:
    store = build_checkpoint_store(actor.context, actor)
    save(store, 0)
    store.wait()
    record = read_record(root)
    assert record is not None
    world.raise_epoch(2)
    world.order(2)
    later = world.rank(Role.ACTOR, epoch=2)
    resumed = build_checkpoint_store(later.context, later)
    published(world, 1)
    save(resumed, 1, lineage=2)
    resumed.wait()
    resumed.keep_reference(2, model(2))
    left = folders(root), sorted((root / "reference").iterdir())
    settle(root, record)  # what the stopped incarnation goes on with
    store._prune(record.folder)
    assert (folders(root), sorted((root / "reference").iterdir())) == left
    assert json.loads((root / "record.json").read_text())["epoch"] == 2


# --- parts of two ranks


@dataclass
class Two:
    """The stores of two ranks that save together."""

    leader: CheckpointStore
    other: CheckpointStore
    sessions: tuple[RankSession, RankSession]

    def save(self, version: int) -> None:
        self.leader.write(weight(version), model(version), state(version), TICKETS)
        self.other.write(weight(version), {}, state(version, rank=1), None)


def store_of(session: RankSession, rank: int, leader: RankSession, patience: float = 300.0) -> CheckpointStore:
    context = dataclasses.replace(session.context, global_rank=rank, world_size=2)
    share = WHOLE if rank == 0 else None
    store = build_checkpoint_store(context, session, leader=leader.incarnation.id, share=share)
    store._place = dataclasses.replace(store._place, parts_seconds=patience)
    return store


@pytest.fixture
def two(world: World, actor: RankSession) -> Two:
    second = world.rank(Role.ACTOR, 1)
    return Two(store_of(actor, 0, actor), store_of(second, 1, actor), (actor, second))


def test_a_checkpoint_has_the_parts_of_all_ranks(world: World, two: Two, root: Path) -> None:
    two.save(0)
    two.other.wait()
    two.leader.wait()
    (name,) = folders(root)
    assert name == f"0-e1-{two.sessions[0].incarnation.id}"
    assert torch.equal(load_file(root / name / "actor-00001.safetensors")["own/random"], torch.tensor([1]))
    assert {"actor-00000.json", "actor-00001.json", "model.safetensors"} < set(
        read_json(root / name / "checksums.json")
    )
    assert two.other.verified(name) == root / name
    assert world.status().recorded == 0


def test_a_part_that_is_written_before_the_leader_begins_counts(world: World, two: Two, root: Path) -> None:
    with noted_syncs() as disk:
        two.other.write(weight(0), {}, state(0, rank=1), None)
        two.other.wait()
        (partial,) = root.glob(".partial-*")
        assert [disk.lost(file) for file in partial.iterdir()] == [None, None], "of another node's disk, to the leader"
    world.restart()
    two.leader.write(weight(0), model(0), state(0), TICKETS)
    two.leader.wait()
    assert world.status().recorded == 0


def test_a_part_that_does_not_come_is_named_and_the_record_before_stands(world: World, two: Two, root: Path) -> None:
    two.save(0)
    two.leader.wait()
    first = read_json(root / "record.json")
    two.leader._place = dataclasses.replace(two.leader._place, parts_seconds=0.2)
    published(world, 1)
    two.leader.write(weight(1), model(1), state(1), TICKETS)
    two.leader.wait()
    (event,) = world.reported(EventKind.CHECKPOINT_GIVEN_UP)
    assert "Checkpoint v1@1 was given up: after 0 s the part of actor rank 1 was missing" in event.message
    assert read_json(root / "record.json") == first
    assert world.status().recorded == 0
    two.leader._place = dataclasses.replace(two.leader._place, parts_seconds=300.0)
    published(world, 2)
    two.save(2)
    two.leader.wait()
    assert world.status().recorded == 2
    assert [name.partition("-e")[0] for name in folders(root)] == ["0", "2"], "nothing is left of what was given up"


def test_three_in_a_row_that_are_given_up_fail_the_job_by_name(world: World, two: Two) -> None:
    two.leader._place = dataclasses.replace(two.leader._place, parts_seconds=0.0)
    for version in range(3):
        published(world, version)
        assert world.status().failures == []
        two.leader.write(weight(version), model(version), state(version), TICKETS)
        two.leader.wait()
    (failure,) = world.status().failures
    assert failure.kind is FailureKind.REPORTED
    assert "3 checkpoints in a row were given up" in failure.message
    assert "the part of actor rank 1 was missing" in failure.message


@pytest.mark.parametrize(
    ("place", "dies"),
    [
        pytest.param("checkpoint.begun", 0, id="the leader, with the checkpoint begun"),
        pytest.param("checkpoint.part_written", 0, id="the leader, with its part written and not reported"),
        pytest.param("checkpoint.part_written", 1, id="another rank, with its part written and not reported"),
    ],
)
def test_a_rank_that_dies_over_its_part_leaves_the_record_before(
    world: World, two: Two, root: Path, tmp_path: Path, place: str, dies: int
) -> None:
    two.save(0)
    two.leader.wait()
    two.other.wait()
    published(world, 1)
    pid = os.fork()
    if pid == 0:
        failpoints._ARMED[place] = 1
        os.environ["RLJOB_FAILPOINTS_DIR"] = str(tmp_path)
        store = store_of(two.sessions[dies], dies, two.sessions[0])
        store.write(weight(1), model(1) if dies == 0 else {}, state(1, dies), TICKETS if dies == 0 else None)
        store.wait()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    restore = world.raise_epoch(2)
    world.order(2)
    folder = f"0-e1-{two.sessions[0].incarnation.id}"
    assert (restore.version, restore.folder) == (0, folder)
    sessions = [world.rank(Role.ACTOR, rank, epoch=2) for rank in (0, 1)]
    resumed = [store_of(session, rank, sessions[0]) for rank, session in enumerate(sessions)]
    assert resumed[1].verified(folder) == root / folder
    published(world, 1)
    resumed[0].write(weight(1, lineage=2), model(1), state(1), TICKETS)
    resumed[1].write(weight(1, lineage=2), {}, state(1, 1), None)
    resumed[0].wait()
    assert folders(root) == sorted([folder, f"1-e2-{sessions[0].incarnation.id}"])


def test_a_reference_that_other_ranks_have_cut_otherwise_is_put_together_and_retained_again(
    world: World, two: Two, root: Path
) -> None:
    whole = model(7)
    for index, (store, name) in enumerate(zip((two.leader, two.other), whole, strict=True)):
        store._share = WeightShare(index, 2, "halves")
        store.keep_reference(0, {name: whole[name]})
        store.write(weight(0), {name: model(0)[name]}, state(0, rank=index), TICKETS if index == 0 else None)
    two.leader.wait()
    two.other.wait()
    assert world.raise_epoch(2).folder is not None
    world.order(2)
    alone = world.rank(Role.ACTOR, epoch=2)
    resumed = build_checkpoint_store(alone.context, alone)
    assert resumed.reference_version == 0
    found = resumed.restored_reference(0, whole.keys())
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        name: tensor.tolist() for name, tensor in whole.items()
    }
    with pytest.raises(CheckpointDamaged, match="has no reference version 0 with head"):
        resumed.restored_reference(0, {*whole, "head"})
    published(world, 1)
    save(resumed, 1, lineage=2)
    resumed.wait()
    (folder,) = (path for path in root.iterdir() if path.name.startswith("1-e2"))
    retained = root / "reference" / read_json(folder / "reference.json")["file"]
    assert load_file(retained).keys() == whole.keys()
