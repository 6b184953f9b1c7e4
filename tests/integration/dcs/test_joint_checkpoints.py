"""One record of two gangs: the parts of all ranks of both, or the record before; never one role without the other."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rljob_api import failpoints
from rljob_api.names import Role
from rljob_api.wire.checkpoints import CheckpointAttempt, CheckpointBegin
from rljob_api.wire.observation import EventKind
from rljob_workers.dcs.checkpoints import attempt
from rljob_workers.dcs.checkpoints.store import CheckpointStore, build_checkpoint_store
from rljob_workers.dcs.errors import DamageReported
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.models.blob import WHOLE, WeightShare
from rljob_workers.models.slices import EXP_AVG, SavedState, StateShare, StateSlice
from tests.integration.dcs.world import PATIENCE_SECONDS, World, eventually, job, read_json
from tests.power_cuts import noted_syncs
from tests.weights import weight

TICKETS = b'{"cursor": 3, "front": [], "draws": [], "kills": {}}'
LENGTH = 12
"""Of the critic's vector of moments, which its ranks share."""


def values(role: Role, version: int) -> torch.Tensor:
    """What a role's weights of a version are made of."""
    return torch.full((4, 4), float(version if role is Role.ACTOR else 100 + version))


def describing(role: Role) -> dict[str, bytes]:
    return {"config.json": f'{{"model": "{role.value}"}}'.encode()}


@dataclass
class Saver:
    """One rank of a role, and its store."""

    session: RankSession
    store: CheckpointStore
    rank: int
    world: int

    @property
    def role(self) -> Role:
        return self.session.incarnation.key.role

    def write(self, version: int, lineage: int = 1) -> None:
        """The critic's model is in as many parts as it has ranks, the actor's in one."""
        part = values(self.role, version)
        moments = torch.full((LENGTH,), float(version)).chunk(self.world)
        offset = (sum(len(each) for each in moments[: self.rank]),)
        share = StateSlice(EXP_AVG, "v", (LENGTH,), offset, moments[self.rank])
        model = {f"{self.role.value}.{self.rank}": part}
        tickets = TICKETS if self.role is Role.ACTOR else None
        self.store.write(weight(version, lineage), model, StateShare([share], {}, {"steps": version}), tickets)

    def verified(self, folder: str) -> Path | None:
        return self.store.verified(folder, self.rank, self.world)


@dataclass
class Gangs:
    """One rank of the actor and some of the critic, of an epoch."""

    world: World
    epoch: int = 1
    critics: int = 2
    actor: Saver = field(init=False)
    critic: list[Saver] = field(init=False)

    def __post_init__(self) -> None:
        leader = self.world.rank(Role.ACTOR, epoch=self.epoch)
        self.actor = self._saver(leader, 0, 1, leader.incarnation.id)
        sessions = [self.world.rank(Role.CRITIC, rank, epoch=self.epoch) for rank in range(self.critics)]
        self.critic = [
            self._saver(session, rank, self.critics, leader.incarnation.id) for rank, session in enumerate(sessions)
        ]

    @property
    def all(self) -> list[Saver]:
        return [self.actor, *self.critic]

    @property
    def root(self) -> Path:
        return Path(self.world.endpoints.run_dir) / "checkpoints"

    def folder(self, version: int) -> str:
        return f"{version}-e{self.epoch}-{self.actor.session.incarnation.id}"

    def save(self, version: int, *, without: tuple[Saver, ...] = ()) -> None:
        """Writes without waiting."""
        self.trained(version)
        for saver in self.all:
            if saver not in without:
                saver.write(version, lineage=self.epoch)

    def trained(self, version: int) -> None:
        """As if both roles had trained all before `version` and it was published: what recording it asks for."""
        with self.world.servers.control.admin() as admin:
            admin.hset("q:meta", "published", version)
            if version:
                admin.zadd("q:finished:critic_train", {str(rollout): rollout for rollout in range(version)})

    def wait(self) -> None:
        for saver in self.all:
            saver.store.wait()

    def _saver(self, session: RankSession, rank: int, size: int, leader: str) -> Saver:
        role = session.incarnation.key.role
        manifest = job(critic_replicas=self.critics) if self.critics else job()
        context = dataclasses.replace(session.context, job=manifest, global_rank=rank, world_size=size)
        share = WHOLE if size == 1 else WeightShare(rank, size, "parts")
        files = describing(role)
        return Saver(session, build_checkpoint_store(context, session, files, leader=leader, share=share), rank, size)


@pytest.fixture
def gangs(critic_world: World) -> Gangs:
    critic_world.begin()
    return Gangs(critic_world)


def opened(world: World, epoch: int, critics: int = 2) -> Gangs:
    """The next epoch, with new ranks."""
    world.raise_epoch(epoch)
    world.order(epoch)
    return Gangs(world, epoch, critics)


def assert_of_one_version(folder: Path, version: int) -> None:
    """All that both gangs wrote of a version, and nothing of another one."""
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == set(read_json(folder / "checksums.json")) | {"checksums.json", "RECORDED"}
    assert {"model.safetensors", "critic/critic-00000.json"} <= files
    assert SavedState(folder, "actor").values == {"steps": version}
    assert SavedState(folder / "critic", "critic").values == {"steps": version}
    for path in (folder / "critic").glob("model*.safetensors"):
        for tensor in load_file(path).values():
            assert torch.equal(tensor, values(Role.CRITIC, version))
    (tensor,) = load_file(folder / "model.safetensors").values()
    assert torch.equal(tensor, values(Role.ACTOR, version))


def test_one_record_has_the_parts_of_both_gangs(gangs: Gangs) -> None:
    gangs.save(0)
    gangs.wait()
    folder = gangs.root / gangs.folder(0)
    assert_of_one_version(folder, 0)
    assert sorted(path.name for path in (folder / "critic").iterdir()) == [
        "config.json",
        "critic-00000.json",
        "critic-00000.safetensors",
        "critic-00001.json",
        "critic-00001.safetensors",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    assert read_json(folder / "config.json") == {"model": "actor"}
    assert read_json(folder / "critic" / "config.json") == {"model": "critic"}
    assert read_json(folder / "critic" / "model.safetensors.index.json")["weight_map"] == {
        "critic.0": "model-00001-of-00002.safetensors",
        "critic.1": "model-00002-of-00002.safetensors",
    }
    assert not (folder / "model.safetensors.index.json").exists()
    assert not list((folder / "critic").glob("reference*")), "rows are measured against the policy alone"
    assert gangs.world.status().recorded == 0
    assert [saver.verified(gangs.folder(0)) for saver in gangs.all] == [folder, folder / "critic", folder / "critic"]


def test_the_ranks_of_all_roles_that_save_are_known_to_each_of_them(gangs: Gangs) -> None:
    for saver in gangs.all:
        parts = saver.store._place.gang.parts
        assert [str(writer) for writer in parts] == ["actor rank 0", "critic rank 0", "critic rank 1"]


def test_a_power_cut_takes_nothing_of_either_gang(gangs: Gangs, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[str | None] = []
    folder = gangs.root / gangs.folder(0)

    def look(window: str) -> None:
        if window == "checkpoint.before_record":
            inner = folder / "critic"
            lost.extend([disk.lost_name(folder), disk.lost_name(inner)])
            lost.extend(disk.lost(path) for path in folder.rglob("*") if path.is_file())

    monkeypatch.setattr(attempt, "failpoint", look)
    with noted_syncs() as disk:
        gangs.save(0)
        gangs.wait()
    assert len(lost) >= 14
    assert lost == [None] * len(lost)


def test_the_leader_waits_for_a_role_that_has_not_come_to_the_version(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The critic may train for longer than any file takes to be written."""
    monkeypatch.setattr(attempt, "POLL_SECONDS", 0.05)
    place = gangs.actor.store._place
    gangs.actor.store._place = dataclasses.replace(place, parts_seconds=0.0)
    gangs.save(0, without=tuple(gangs.critic))
    path = f"/v1/checkpoints/attempts/{gangs.folder(0)}"

    def attempted() -> CheckpointAttempt | None:
        answer = gangs.world.call("GET", path)
        found = None if answer == b"null" else CheckpointAttempt.model_validate_json(answer)
        return found if found is not None and found.parts else None

    eventually(attempted, "the leader's part")
    time.sleep(0.5)  # for a leader that does not wait
    assert gangs.world.reported(EventKind.CHECKPOINT_GIVEN_UP) == []
    critic = gangs.critic[0]
    begin = CheckpointBegin(
        incarnation=critic.session.incarnation,
        id=weight(0),
        folder=gangs.folder(0),
        parts=list(critic.store._place.gang.parts),
    )
    gangs.world.call("POST", "/v1/checkpoints/begin", begin)
    gangs.actor.store.wait()
    (event,) = gangs.world.reported(EventKind.CHECKPOINT_GIVEN_UP)
    assert "the part of critic rank 0, critic rank 1 was missing" in event.message
    assert gangs.world.status().recorded is None


def test_parts_of_the_critic_that_come_first_outlive_the_coordinator(gangs: Gangs) -> None:
    for saver in gangs.critic:
        saver.write(0)
        saver.store.wait()
    gangs.world.restart()
    gangs.actor.write(0)
    gangs.actor.store.wait()
    assert_of_one_version(gangs.root / gangs.folder(0), 0)
    assert gangs.world.status().recorded == 0


@pytest.mark.parametrize(
    ("place", "who", "recorded"),
    [
        pytest.param("checkpoint.begun", 1, 0, id="the critic, which has come to the version"),
        pytest.param("checkpoint.part_written", 1, 0, id="the critic, with its part written and not reported"),
        pytest.param("checkpoint.part_written", 2, 0, id="another rank of the critic, with its part written"),
        pytest.param("checkpoint.begun", 0, 0, id="the leader, with the checkpoint begun"),
        pytest.param("checkpoint.part_written", 0, 0, id="the leader, with its part written and not reported"),
        pytest.param("checkpoint.before_rename", 0, 0, id="the leader, with all parts there"),
        pytest.param("checkpoint.before_record", 0, 0, id="the leader, with a folder that is not recorded"),
        pytest.param("checkpoint.after_record", 0, 1, id="the leader, with the record made"),
    ],
)
def test_a_rank_of_either_role_that_dies_leaves_a_record_of_both(
    gangs: Gangs, tmp_path: Path, place: str, who: int, recorded: int
) -> None:
    world = gangs.world
    gangs.save(0)
    gangs.wait()
    dies = gangs.all[who]
    pid = os.fork()
    if pid == 0:
        failpoints._ARMED[place] = 1
        os.environ["RLJOB_FAILPOINTS_DIR"] = str(tmp_path)
        leader = gangs.actor.session.incarnation.id
        doomed = gangs._saver(dies.session, dies.rank, dies.world, leader)
        doomed.write(1)
        doomed.store.wait()
        os._exit(0)
    gangs.save(1, without=(dies,))
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    restore = world.raise_epoch(2)
    world.order(2)
    assert restore.folder is not None
    assert (restore.version, restore.folder) == (recorded, gangs.folder(recorded))
    later = Gangs(world, epoch=2)
    folder = gangs.root / restore.folder
    assert [saver.verified(restore.folder) for saver in later.all] == [folder, folder / "critic", folder / "critic"]
    assert_of_one_version(folder, recorded)
    later.save(recorded + 1)
    later.wait()
    assert world.status().recorded == recorded + 1
    assert_of_one_version(later.root / later.folder(recorded + 1), recorded + 1)


@pytest.mark.parametrize("file", ["model-00002-of-00002.safetensors", "critic-00001.json", "config.json", "."])
def test_damage_of_the_critic_takes_both_back_to_the_record_before(gangs: Gangs, file: str) -> None:
    gangs.save(0)
    gangs.wait()
    gangs.save(1)
    gangs.wait()
    later = opened(gangs.world, 2)
    damaged = gangs.root / gangs.folder(1) / "critic" / file
    if damaged.is_dir():
        damaged.rename(damaged.with_name("elsewhere"))
    else:
        content = bytearray(damaged.read_bytes())
        content[-1] ^= 1
        damaged.write_bytes(content)
    found = []
    for saver in later.critic:
        try:
            saver.verified(gangs.folder(1))
        except DamageReported as damage:
            found.append(damage)
    assert found
    assert "critic/" in str(found[0])
    restore = gangs.world.raise_epoch(3)
    assert (restore.version, restore.folder) == (0, gangs.folder(0))
    gangs.world.order(3)
    last = Gangs(gangs.world, epoch=3)
    assert all(saver.verified(gangs.folder(0)) for saver in last.all)
    assert (gangs.root / f"{gangs.folder(1)}.damaged").is_dir()


def test_the_actor_reads_no_file_of_the_critic(gangs: Gangs) -> None:
    """Each gang verifies what it loads."""
    gangs.save(0)
    gangs.wait()
    (gangs.root / gangs.folder(0) / "critic" / "config.json").unlink()
    later = opened(gangs.world, 2)
    assert later.actor.verified(gangs.folder(0)) == gangs.root / gangs.folder(0)
    assert later.actor.store.verified(gangs.folder(0), 0, 2) == gangs.root / gangs.folder(0)


def test_another_number_of_ranks_restores_the_critic_and_saves_it(gangs: Gangs) -> None:
    gangs.save(5)
    gangs.wait()
    later = opened(gangs.world, 2, critics=1)
    folder = later.critic[0].verified(gangs.folder(5))
    assert folder is not None
    state, whole = SavedState(folder, "critic"), {"v": torch.zeros(LENGTH)}
    state.check(EXP_AVG, {"v": (LENGTH,)})
    state.fill(EXP_AVG, whole)
    assert whole["v"].tolist() == [5.0] * LENGTH
    later.save(6)
    later.wait()
    assert_of_one_version(later.root / later.folder(6), 6)
    assert (later.root / later.folder(6) / "critic" / "model.safetensors").is_file()
    assert not (later.root / later.folder(6) / "critic" / "critic-00001.json").exists()


def test_a_critic_that_a_record_does_not_know_begins_again(critic_world: World) -> None:
    """The job had none when it was saved."""
    critic_world.begin()
    alone = Gangs(critic_world, critics=0)
    alone.save(0)
    alone.wait()
    folder = alone.folder(0)
    later = opened(critic_world, 2)
    assert [saver.verified(folder) for saver in later.all] == [alone.root / folder, None, None]
    later.save(1)
    later.wait()
    assert_of_one_version(later.root / later.folder(1), 1)


def test_a_job_that_has_no_critic_any_more_leaves_its_part_out(gangs: Gangs) -> None:
    gangs.save(0)
    gangs.wait()
    later = opened(gangs.world, 2, critics=0)
    assert later.actor.verified(gangs.folder(0)) == gangs.root / gangs.folder(0)
    later.save(1)
    later.wait()
    assert not (later.root / later.folder(1) / "critic").exists()
    assert gangs.world.status().recorded == 1


def test_old_folders_go_with_all_that_both_gangs_wrote(gangs: Gangs) -> None:
    for version in range(4):
        gangs.save(version)
        gangs.wait()
    names = sorted(path.name for path in gangs.root.iterdir() if path.is_dir() and path.name[0].isdigit())
    assert names == [gangs.folder(2), gangs.folder(3)]
    assert not [path for path in gangs.root.iterdir() if path.name.startswith(".")]


def test_gangs_that_save_at_their_own_pace_make_whole_records(gangs: Gangs) -> None:
    """The critic comes to each version later, or earlier, than the actor."""
    gangs.save(0)
    gangs.wait()

    def run(saver: Saver) -> None:
        for version in (1, 2, 3):
            saver.write(version)
        saver.store.wait()

    gangs.trained(3)
    running = [threading.Thread(target=run, args=(saver,)) for saver in gangs.all]
    for thread in reversed(running):
        thread.start()
    for thread in running:
        thread.join(PATIENCE_SECONDS)
    assert gangs.world.status().recorded == 3
    assert_of_one_version(gangs.root / gangs.folder(3), 3)
    assert len(gangs.world.reported(EventKind.RECORDED)) == 4
