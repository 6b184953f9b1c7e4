"""Incidents of pods, ranks and engines within a schedule, drawn from its own generator."""

from __future__ import annotations

from random import Random
from typing import Any

from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_CUT_OFF, EXIT_GROUP_BROKEN, Role
from rljob_api.wire.failures import FailureKind, Hopeless
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import EngineProcess, EngineState, RankProcess
from rljob_api.wire.ranks import RankState
from rljob_operator.core import (
    PodEnding,
    PodState,
)
from tests.recorded.decisions.world import World
from tests.unit.core.cluster import Pod

EXIT_CODES = (0, 1, 3, -9, 137, EXIT_BAD_MANIFEST, EXIT_CUT_OFF, EXIT_GROUP_BROKEN)


def rank_exits(world: World, rng: Random) -> None:
    if world.members():
        code = rng.choice(EXIT_CODES)
        tail = "Traceback:\nspec.x: is wrong." if code == EXIT_BAD_MANIFEST else ""
        world.fail(rng.choice(world.members()), exit_code=code, cut_off=rng.random() < 0.2, last_words=tail)


def old_rank_exits(world: World, rng: Random) -> None:
    if world.members():
        world.fail(rng.choice(world.members()), epoch=max(0, world.status.restart.epoch - 1), id="old")


def reports(world: World, rng: Random) -> None:
    """A failure that is no exit."""
    kinds = [FailureKind.ROWS_LOST, FailureKind.CHECKPOINT_DAMAGED, FailureKind.HANG, FailureKind.LAUNCHER_LOST]
    if rng.random() < 0.1:
        kinds = [FailureKind.REPORTED]
    if world.members():
        world.fail(rng.choice(world.members()), kind=rng.choice(kinds), exit_code=None, message="so it was reported")


def engine_dies(world: World, rng: Random) -> None:
    hopeless = rng.choice([None, None, Hopeless.ENGINE_CANNOT_START, Hopeless.ENGINE_MISMATCH, "Later"])
    kind = FailureKind.REPORTED if hopeless is Hopeless.ENGINE_MISMATCH else FailureKind.ENGINE_EXITED
    if PodKey(role=Role.ROLLOUT, replica=0) in world.members():
        pod = PodKey(role=Role.ROLLOUT, replica=rng.randrange(len(world.membership(Role.ROLLOUT))))
        text = f"The engine of {pod} was killed by SIGKILL"
        world.fail(pod, kind=kind, exit_code=None, message=text, hopeless=hopeless, engine=0)


def engines_run(world: World, rng: Random) -> None:
    for key in world.members():
        if key.role is Role.ROLLOUT:
            state = rng.choice(list(EngineState))
            engine = EngineProcess(pid=5, incarnation="0" * 12, url="http://127.0.0.1:1", state=state)
            world.engines[key] = [engine]


def pod_ends(world: World, rng: Random) -> None:
    pod = _pod(world, rng)
    if pod is not None:
        world.end(pod, rng.choice(list(PodEnding)), grace=rng.choice([None, None, 30.0, 90.0]))


def node_is_lost(world: World, rng: Random) -> None:
    for pod in rng.sample(world.pods, k=min(2, len(world.pods))):
        world.end(pod, PodEnding.NODE_LOST)


def container_ends(world: World, rng: Random) -> None:
    pod = _pod(world, rng)
    if pod is not None:
        pod.state, pod.exit_code = PodState.EXITED, rng.choice(EXIT_CODES)
        pod.reason = rng.choice(["", "OOMKilled", "Error"])
        pod.last_message, pod.asked_to_end = rng.choice(["", "it said so"]), rng.random() < 0.2


def container_restarts(world: World, rng: Random) -> None:
    pod = _pod(world, rng)
    if pod is not None:
        world.restart(pod)
        pod.exit_code, pod.asked_to_end = rng.choice([1, 137, EXIT_BAD_MANIFEST]), rng.random() < 0.3


def falls_silent(world: World, rng: Random) -> None:
    pod = _pod(world, rng)
    if pod is not None:
        pod.silent = rng.choice([0.1, 16.0, 99.0, 999.0])
        pod.beats, pod.busy_seconds = rng.choice([None, 31.0, 120.0]), rng.choice([None, None, 20.0])
        pod.waiting = rng.choice([None, "rows of train_3"])


def goes_deaf(world: World, rng: Random) -> None:
    pod = _pod(world, rng)
    if pod is not None:
        pod.deaf = not pod.deaf


def gang_waits(world: World, rng: Random) -> None:
    """A pod is lost that the gang cannot be without, and the cluster has no room for another."""
    world.has_room = False
    if world.membership(Role.ACTOR) and world.pods:
        lost = [pod for pod in world.pods if pod.role is Role.ACTOR]
        world.end(rng.choice(lost or world.pods), PodEnding.PREEMPTED)
    world.settle(3)
    world.turn(55)
    world.turn(10)
    world.settle(2)


def reference_exits(world: World, rng: Random) -> None:
    """The same role fails again and again."""
    key = PodKey(role=Role.REFERENCE, replica=0)
    if key in world.members():
        world.fail(key)


def launcher_stops(world: World, rng: Random) -> None:
    if world.members():
        world.stopped ^= {rng.choice(world.members())}


def lingers(world: World, rng: Random) -> None:
    world.stops = not world.stops


def nothing_has_room(world: World, rng: Random) -> None:
    world.has_room = False


def pods_start_slowly(world: World, rng: Random) -> None:
    world.starts = PodState.PENDING
    for pod in world.pods:
        if pod.state is PodState.PENDING:
            pod.reason, pod.last_message = "Unschedulable", "0/1 nodes are available."


def collective_breaks(world: World, rng: Random) -> None:
    """Two ranks in each of two actor pods: some left, one is behind, killed, cut off or hangs."""
    epoch = world.status.restart.epoch
    num_actors = len(world.membership(Role.ACTOR))
    culprit, entered = rng.randrange(2 * max(num_actors, 1)), rng.choice([6, 7, None])
    code = rng.choice([None, None, -9, EXIT_CUT_OFF])
    seen = world.observe().coordinator
    world.turns.pop()
    pods = list(seen.pods) if seen is not None else []
    for place, pod in enumerate(pods):
        if pod.pod.role is not Role.ACTOR:
            continue
        ranks = [_rank(n, 2 * pod.pod.replica + n == culprit, entered, code, pod.processes) for n in (0, 1)]
        pods[place] = pod.model_copy(update={"processes": ranks, "ranks": []})
        for rank in ranks:
            if rank.exit_code == EXIT_GROUP_BROKEN and rank.epoch == epoch and rng.random() < 0.8:
                text = f"{pod.pod}.{rank.rank} exited with code 76: It waited."
                world.fail(pod.pod, id=f"c/{pod.pod}/{rank.rank}/{epoch}", rank=rank.rank, exit_code=76, message=text)
    world.stated["pods"] = pods


def collective_is_over(world: World, rng: Random) -> None:
    world.stated.pop("pods", None)
    world.failures = []


def launchers_end(world: World, rng: Random) -> None:
    for pod in world.pods:
        pod.state, pod.exit_code = PodState.EXITED, 0


def ranks_register_late(world: World, rng: Random) -> None:
    """The coordinator has not seen the ranks of one role yet, or they still load."""
    seen = world.observe().coordinator
    world.turns.pop()
    if seen is None:
        return
    role, state = rng.choice(list(world.replicas)), rng.choice([None, RankState.STARTING])
    pods = []
    for pod in seen.pods:
        ranks = [rank.model_copy(update={"state": state}) for rank in pod.ranks if state is not None]
        pods.append(pod.model_copy(update={"ranks": ranks}) if pod.pod.role is role else pod)
    world.stated["pods"] = pods


def _pod(world: World, rng: Random) -> Pod | None:
    return rng.choice(world.pods) if world.pods else None


def _rank(
    number: int, is_culprit: bool, entered: int | None, code: int | None, processes: list[RankProcess]
) -> RankProcess:
    """A rank that left a broken collective, or the one that broke it."""
    mine = processes[0] if processes else None
    order = {"epoch": mine.epoch, "generation": mine.generation} if mine is not None else {"epoch": 0, "generation": 0}
    of: dict[str, Any] = {**order, "rank": number, "pid": number, "incarnation": f"{number:012x}"}
    if is_culprit:
        within = entered == 7
        return RankProcess(
            **of, collectives=entered, is_within_collective=within, exit_code=code, cut_off=code == EXIT_CUT_OFF
        )
    return RankProcess(**of, collectives=7, is_within_collective=True, exit_code=EXIT_GROUP_BROKEN)
