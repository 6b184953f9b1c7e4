"""Incidents of a job within a schedule, by its user, its platform, its coordinator or its queue."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from rljob_api.names import EXIT_BAD_MANIFEST, Role, WeightVersion
from rljob_api.spec.restart import RestartRequestSpec
from rljob_api.status import AcceptedStatus
from rljob_api.wire.observation import EvaluationObservation, RoomMade, ServerState, SetFigure
from rljob_api.wire.ranks import StepReport
from rljob_api.wire.turns import StopReached
from rljob_operator.core import (
    PodState,
    ProcessFact,
    Reason,
    RefusedSpec,
    RetainedRun,
    TrackerFact,
    VolumeFact,
)
from rljob_operator.core.observed import Blocker
from rljob_operator.core.queue import Hold, QueueFact
from tests.recorded.decisions.world import World
from tests.unit.core.test_autoscaling import train
from tests.unit.core.test_queue import ADMISSION, ADMITTED
from tests.unit.core.worlds import make_autoscaling, make_queue


def quiet(world: World, rng: Random) -> None:
    """Only time goes on."""


def trains(world: World, rng: Random) -> None:
    world.step += rng.randint(1, 4)
    world.recorded = world.step + rng.choice([0, 1])


def recovers(world: World, rng: Random) -> None:
    """Everything obeys, answers and has room again."""
    world.stops = world.answers = world.has_room = True
    world.starts, world.silent_since, world.secret_is_lost, world.refuses = PodState.RUNNING, None, False, False
    world.infrastructure, world.failures = [], []
    world.beside.pop("unmade", None)
    world.beside.pop("blockers", None)
    for name in ("server", "pods", "progress_age_seconds"):
        world.stated.pop(name, None)
    for pod in world.pods:
        pod.deaf, pod.silent, pod.beats, pod.busy_seconds, pod.waiting = False, 0.1, None, None, None
        if pod.state is PodState.PENDING:
            pod.state, pod.placed = PodState.RUNNING, True


def coordinator_goes(world: World, rng: Random) -> None:
    reasons = [Reason.COORDINATOR_UNREACHABLE, Reason.INFRASTRUCTURE_DOWN]
    world.silent_since, world.silent_for = world.now, rng.choice(reasons)
    world.answers = rng.random() < 0.5
    for _ in range(3):
        world.turn(rng.choice([1, 20, 40]))


def coordinator_comes(world: World, rng: Random) -> None:
    world.silent_since, world.answers = None, True


def control_state_goes(world: World, rng: Random) -> None:
    world.stated["server"] = rng.choice([ServerState.LOST, ServerState.OPENING])
    world.recorded = max(0, world.recorded - rng.randint(0, 2))


def control_state_opens(world: World, rng: Random) -> None:
    world.stated.pop("server", None)


def infrastructure_goes(world: World, rng: Random) -> None:
    name = rng.choice(["coordinator", "control", "storage-0"])
    ends = tuple(world.now - n for n in range(rng.choice([1, 2, 6, 12]), 0, -1))
    down = {"down_since": world.now, "reason": "CrashLoopBackOff", "waits_for": "CrashLoopBackOff: back-off"}
    dead = {"exits": ends, "exit_code": rng.choice([1, -9, EXIT_BAD_MANIFEST]), "last_message": "no space"}
    alive = rng.random() < 0.6
    fact = ProcessFact(name, None, alive=alive, num_restarts=rng.choice([0, 3, 20]), **(down if alive else dead))  # type: ignore[arg-type]
    world.infrastructure = [fact]
    world.processes = rng.choice([frozenset(), frozenset({name, "telemetry"})])


def infrastructure_crashes(world: World, rng: Random) -> None:
    """A process ends and ends, in vain or until the job comes forward."""
    count = 0
    for _ in range(rng.choice([3, 12])):
        count += rng.choice([1, 2, 3])
        world.infrastructure = [ProcessFact("control", None, alive=True, num_restarts=count, exit_code=1)]
        world.stated["progress_age_seconds"] = 10.0
        world.turn(5)


def another_epoch(world: World, rng: Random) -> None:
    """The coordinator has an epoch that the status does not know."""
    world.stated["epoch"] = world.epoch + 1
    world.turn(1)
    world.stated.pop("epoch")
    world.epoch += 1


def secret_goes(world: World, rng: Random) -> None:
    world.secret_is_lost = not world.secret_is_lost


def orders_are_refused(world: World, rng: Random) -> None:
    world.refuses = not world.refuses
    world.beside["blockers"] = (Blocker("OrdersRefused", "the coordinator refuses the orders"),) * world.refuses


def suspends(world: World, rng: Random) -> None:
    world.ask(suspend=True)


def resumes(world: World, rng: Random) -> None:
    world.ask(suspend=False)


def scales(world: World, rng: Random) -> None:
    world.replicas[Role.ROLLOUT] = rng.randint(1, 4)
    world.ask()


def steps_starved(world: World, rng: Random) -> None:
    train(world, rng.randint(2, 5), starved=rng.choice([0.5, 0.9]), idle=0.02)


def steps_idle(world: World, rng: Random) -> None:
    train(world, rng.randint(3, 8), idle=rng.choice([0.4, 0.7]))


def bounds_change(world: World, rng: Random) -> None:
    world.autoscaling = rng.choice([make_autoscaling(min_replicas=3), make_autoscaling(max_replicas=2), None])
    world.ask()


def is_edited(world: World, rng: Random) -> None:
    world.ask(revision=f"r{rng.randint(1, 3)}")


def is_outdated(world: World, rng: Random) -> None:
    world.ask(outdated=not world.request.outdated)


def is_refused(world: World, rng: Random) -> None:
    generation = world.request.generation + 1
    reason = rng.choice([Reason.INVALID_SPEC, Reason.OBJECT_REFUSED])
    world.request = replace(
        world.request,
        accepted=AcceptedStatus(generation=1, digest="d1"),
        refusal=RefusedSpec(generation, "spec.x: is wrong. Mend it.", reason),
    )


def is_mended(world: World, rng: Random) -> None:
    world.request = replace(world.request, generation=world.request.generation + 1, refusal=None)


def restart_is_requested(world: World, rng: Random) -> None:
    role = rng.choice([None, Role.ACTOR, Role.ROLLOUT, Role.REFERENCE])
    world.ask(restart_request=RestartRequestSpec(id=f"id{rng.randint(0, 99)}", role=role, reason="so I wish"))


def pods_are_not_made(world: World, rng: Random) -> None:
    quota = Blocker("FailedCreate", "exceeded quota")
    world.beside["unmade"] = {rng.choice(list(world.replicas)): quota}
    world.beside["blockers"] = (Blocker("ObjectRefused", "Deployment job-actor was refused: denied"),)


def quota_is_taken(world: World, rng: Random) -> None:
    reason = rng.choice([Reason.QUOTA_TAKEN, Reason.QUEUED])
    world.admission = QueueFact(Hold(reason, f"LocalQueue team: {rng.choice(['by job b', 'no flavor'])}"), wanted=2)


def is_admitted(world: World, rng: Random) -> None:
    world.admission = rng.choice([ADMITTED, QueueFact(None, ADMISSION, wanted=3, granted=2)])


def leaves_the_queue(world: World, rng: Random) -> None:
    world.admission = None


def stands_still(world: World, rng: Random) -> None:
    world.stated["progress_age_seconds"] = rng.choice([100.0, 700.0, 5000.0])
    world.turn(700)


def queue_drains(world: World, rng: Random) -> None:
    since = rng.choice([None, world.now])
    room = rng.choice([None, RoomMade(rows=8, message="Storage was full: 8 rows went.")])
    world.queue = make_queue().model_copy(update={"draining_since": since, "drained_until": world.now, "room": room})


def drain_is_taken_back(world: World, rng: Random) -> None:
    """A drain that lasts, and ends."""
    world.queue = make_queue().model_copy(update={"draining_since": world.now})
    world.turn(1)
    world.queue = make_queue().model_copy(update={"drained_until": world.now})


def step_is_reported(world: World, rng: Random) -> None:
    world.step, world.recorded = world.step + 1, world.step + 2
    key = {"role": "actor", "replica": 0, "rank": 0}
    incarnation = {"key": key, "epoch": world.epoch, "generation": 0, "incarnation": "0" * 12}
    of = {"life": incarnation, "step": world.step, "version": world.step + 1, "reward": 0.5, "loss": 0.25}
    report = StepReport.model_validate(
        {**of, "staleness": 1, "samples": 32, "tokens": 96, "seconds": rng.choice([0, 2])}
    )
    world.stated["last_step"] = report


def is_evaluated(world: World, rng: Random) -> None:
    sets = [SetFigure(name="gsm8k", metric="mean@8", value=rng.choice([0.25, 0.5]))]
    world.stated["evaluation"] = EvaluationObservation(version=WeightVersion(world.recorded), sets=sets)
    world.stated["published"] = WeightVersion(world.recorded)


def volume_is_small(world: World, rng: Random) -> None:
    small = VolumeFact("job-checkpoints", "20Gi", "20Gi", "10Gi", is_large_enough=False)
    world.beside["volume"] = rng.choice([small, replace(small, refusal="it may not")])
    world.turn(1)
    world.beside["volume"] = replace(small, capacity="20Gi", is_large_enough=True)


def tracker_fails(world: World, rng: Random) -> None:
    fed = TrackerFact("tensorboard", runs=True)
    failed = TrackerFact("wandb", False, "TrackerFailed", "its process ended with -9")
    world.beside["trackers"] = rng.choice([(), (fed,), (fed, failed)])


def was_retained(world: World, rng: Random) -> None:
    recorded = rng.choice([None, 7, 100])
    world.retained = RetainedRun("job-checkpoints", recorded, None if recorded is None else f"{recorded}-e2-a")
    world.earlier_epoch = rng.choice([0, 3])


def is_done(world: World, rng: Random) -> None:
    world.step, world.recorded = 99, 100
    world.stated["is_evaluating_last"] = rng.random() < 0.2


def stop_is_reached(world: World, rng: Random) -> None:
    world.stated["stop"] = StopReached(version=WeightVersion(world.recorded), message="stopWhen holds: reward is 1")
    world.step = world.recorded - 1


def has_limits(world: World, rng: Random) -> None:
    world.ask(
        active_deadline_seconds=rng.choice([None, None, 600]),
        startup_deadline_seconds=rng.choice([None, 30]),
        ttl_seconds_after_finished=rng.choice([None, 20]),
    )


def is_interrupted(world: World, rng: Random) -> None:
    world.beside["interrupted_at"] = world.now


def is_deleted(world: World, rng: Random) -> None:
    finalizers = rng.choice([("example.com/audit",), ("foregroundDeletion",), ("a.io/x", "b.io/y")])
    world.delete(finalizers, has_pods=True)
    world.delete(finalizers, has_pods=False)
