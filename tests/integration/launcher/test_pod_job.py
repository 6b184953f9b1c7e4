"""A whole job out of containers, with models and real roles: a late rollout replica, its drain, a death, the end."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api.names import Role
from rljob_api.spec import RLJob
from rljob_api.wire.epochs import PodPhase
from rljob_api.wire.identity import PodKey
from rljob_workers.kept_logs import RetainedLogs
from tests.integration.launcher.conftest import IMPORT_SECONDS, eventually
from tests.integration.launcher.pods import Container, Pods
from tests.integration.run.job import make_manifest

FIRST, LATE = PodKey(role=Role.ROLLOUT, replica=0), PodKey(role=Role.ROLLOUT, replica=1)
ACTOR = PodKey(role=Role.ACTOR, replica=0)
ADVANTAGES = PodKey(role=Role.ADVANTAGES, replica=0)
PODS = [FIRST, ACTOR, PodKey(role=Role.ACTOR_FWD, replica=0), ADVANTAGES]


@pytest.fixture
def pods() -> Iterator[Pods]:
    """Servers and coordinator; the coordinator and the actor share a volume."""
    with tempfile.TemporaryDirectory(prefix="rlj-pods-") as folder:
        manifest = make_manifest(
            Path(folder),
            roles={"reference": None},
            algorithm={"kl": {"coefficient": 0.0}},
            rollout={"numRollouts": 100_000},
            restartPolicy={"heartbeatTimeoutSeconds": 60, "stallTimeoutSeconds": 300},
        )
        pods = Pods(Path(folder), RLJob.model_validate(manifest))
        volume = Path(folder) / "uid-actor-0/var/lib/rljob"
        volume.mkdir(parents=True)
        (Path(folder) / "coordinator/var/lib").mkdir(parents=True)
        (Path(folder) / "coordinator/var/lib/rljob").symlink_to(volume)
        pods.start_servers()
        pods.start_coordinator()
        yield pods
        pods.stop()


def step(pods: Pods) -> int:
    reached = pods.status().step
    return -1 if reached is None else reached


def trains_on(pods: Pods) -> None:
    before = step(pods)
    eventually(f"steps after {before}", lambda: step(pods) > before + 1)


def all_ready(containers: list[Container]) -> None:
    for container in containers:
        try:
            eventually(f"{container.uid} to be ready", container.is_ready, IMPORT_SECONDS)
        except AssertionError as error:
            error.add_note(container.output()[-3000:])
            raise


@pytest.mark.timeout(900)
def test_a_job_of_containers_grows_shrinks_loses_a_rank_and_ends(pods: Pods) -> None:
    containers = {pod: pods.real_worker(pod, f"127.0.0.{2 + at}") for at, pod in enumerate(PODS)}
    late = pods.real_worker(LATE, "127.0.0.9")
    for container in containers.values():
        container.start()
    late.start()  # a surplus pod: it waits until it is ordered
    uids = {pod: container.uid for pod, container in containers.items()}
    pods.raise_epoch(1, pods.job)
    pods.order(1, uids)
    all_ready(list(containers.values()))
    eventually("steps", lambda: step(pods) >= 2)
    # The job may train before the surplus pod, which imports beside it, serves its probes.
    eventually("the late pod's probes", lambda: late.probe("/livez")[0] == 200, IMPORT_SECONDS)
    assert late.probe("/startupz")[0] == 503

    published = pods.status().published
    pods.order(1, {**uids, LATE: late.uid})
    eventually("the late replica to be ready", late.is_ready)
    seen = eventually("its weights", lambda: next((row for row in held(pods, LATE)), None))
    assert published is not None
    assert seen >= published
    trains_on(pods)

    pods.order(1, {**uids, LATE: late.uid}, draining=LATE)
    eventually("the late replica's rank to leave", lambda: exit_codes(pods, LATE) == [0])
    # The rank may have learned of the drain, and left, before its launcher did.
    eventually("the late pod to know that it drains", lambda: late.probe("/readyz") == (503, "the pod drains\n"))
    trains_on(pods)
    late.signal(signal.SIGTERM)
    assert late.wait() == 143
    pods.order(1, uids)
    trains_on(pods)
    assert pods.status().failures == []

    dead = pods.seen(ADVANTAGES)
    assert dead is not None
    os.kill(dead.ranks[0].pid, signal.SIGKILL)
    failure = eventually("the report", lambda: next(iter(pods.status().failures), None))
    assert failure.pod == ADVANTAGES
    pods.order(1, uids, generations={ADVANTAGES: 1})
    trains_on(pods)
    # What the dead one wrote is on the volume, and that of its next incarnation; so it is of pods that have gone.
    eventually("the logs of both lives", lambda: {*retained(pods, previous=True)} >= {"advantages-0.0"})
    assert {"actor-0.0", "rollout-0.0", "rollout-0.engine", "rollout-1.0"} <= {*retained(pods, previous=False)}

    pods.order(1, uids, PodPhase.DONE, generations={ADVANTAGES: 1})
    for pod, container in containers.items():
        has_ended(pods, pod)
        container.signal(signal.SIGTERM)
        assert container.wait() == 0, container.output()[-2000:]


def retained(pods: Pods, *, previous: bool) -> dict[str, str]:
    """What the coordinator keeps of logs, by name."""
    run_dir = pods.folder / "coordinator/var/lib/rljob"
    return {tail.name: tail.text for tail in RetainedLogs(run_dir).read(None, previous=previous).logs}


def has_ended(pods: Pods, pod: PodKey) -> None:
    eventually(f"{pod} to be done", lambda: all(code is not None for code in exit_codes(pods, pod)))


def held(pods: Pods, pod: PodKey) -> list[int]:
    seen = pods.seen(pod)
    return [] if seen is None else [row.holds.version for row in seen.ranks if row.holds is not None]


def exit_codes(pods: Pods, pod: PodKey) -> list[int | None]:
    seen = pods.seen(pod)
    return [] if seen is None else [row.exit_code for row in seen.processes]
