"""Containers of a job, as the kubelet would run them: replicas, jobs by epoch, deaths, probes, logs, ends."""

import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api.cluster import ASKED_TO_END, TERMINATION_FILE
from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FENCED, EXIT_TERMINATED
from rljob_api.spec import RLJob
from rljob_api.wire.epochs import PodPhase
from rljob_api.wire.ranks import RankState
from tests.integration.launcher.conftest import ACTOR, ROLLOUT, eventually, is_running
from tests.integration.launcher.pods import Container, Pods


@pytest.fixture
def pods() -> Iterator[Pods]:
    """Servers and coordinator run; no worker does."""
    with tempfile.TemporaryDirectory(prefix="rlj-pods-") as folder:
        pods = Pods(Path(folder))
        pods.start_servers()
        pods.start_coordinator()
        yield pods
        pods.stop()


@pytest.fixture
def actor(pods: Pods) -> Container:
    """The actor's pod, Ready in epoch 1."""
    pods.raise_epoch(1)
    pods.order(1, {ACTOR: "uid-actor-0"})
    container = pods.worker(ACTOR)
    container.start()
    eventually("the actor to be ready", container.is_ready)
    return container


def changed(job: RLJob, rate: float, units: int = 2) -> RLJob:
    values = job.model_dump()
    values["spec"]["training"]["optimizer"]["learningRate"] = rate
    values["spec"]["transferQueue"]["storageUnits"] = units
    return RLJob.model_validate(values)


def act(container: Container, what: str) -> None:
    (container.folder / "var/lib/rljob/act.new").write_text(what)
    (container.folder / "var/lib/rljob/act.new").rename(container.folder / "var/lib/rljob/act")


def test_a_pod_waits_until_an_order_names_its_replica(pods: Pods) -> None:
    container = pods.worker(ACTOR, "some-uid")
    container.start()
    eventually("its probes", lambda: container.probe("/livez")[0] == 200)
    assert container.probe("/startupz")[0] == 503
    assert container.probe("/readyz")[0] == 503
    pods.raise_epoch(1)
    desired = pods.order(1, {ACTOR: "some-uid"})
    eventually("the pod to be ready", container.is_ready)
    assert container.probe("/startupz")[0] == 200
    seen = pods.seen(ACTOR)
    assert seen is not None
    assert (seen.pod_uid, seen.container_restart_count) == ("some-uid", 0)
    assert pods.status().desired == desired


def test_a_pod_starts_before_its_coordinator_and_servers_do() -> None:
    with tempfile.TemporaryDirectory(prefix="rlj-pods-") as folder:
        pods = Pods(Path(folder))
        container = pods.worker(ROLLOUT)
        container.start()
        eventually("its probes", lambda: container.probe("/livez")[0] == 200)
        pods.start_coordinator()
        pods.start_servers()
        pods.raise_epoch(1)
        pods.order(1, {ROLLOUT: container.uid})
        eventually("the pod to be ready", container.is_ready)
        assert "rljob_pod_engine_starts_total" in container.probe("/metrics")[1]
        pods.stop()


def test_a_rank_that_dies_makes_the_pod_unready_and_its_traceback_is_on_the_output(
    pods: Pods, actor: Container
) -> None:
    act(actor, "raise the loss is not finite")
    failure = eventually("the report", lambda: next(iter(pods.status().failures), None))
    assert failure.id.startswith("uid-actor-0/0/")
    actor.replies("[actor-0.0] RuntimeError: the loss is not finite")
    assert "[actor-0.0] Traceback" in actor.output()
    assert actor.probe("/readyz") == (503, "0 of 1 ranks are Ready\n")
    pods.order(1, {ACTOR: actor.uid}, generations={ACTOR: 1})
    eventually("the pod to be ready again", actor.is_ready)
    assert "rljob_pod_rank_starts_total" in actor.probe("/metrics")[1]


def test_an_epoch_runs_with_its_own_job_also_after_the_coordinator_was_killed(pods: Pods, actor: Container) -> None:
    actor.replies("learns at 1e-06")
    pods.raise_epoch(2, changed(pods.job, 0.5, units=1))
    pods.order(2, {ACTOR: actor.uid})
    actor.replies("learns at 0.5")
    actor.replies("units 1 address 127.0.0.1")
    assert pods.coordinator is not None
    pods.coordinator.kill()
    pods.coordinator.wait()
    pods.start_coordinator()
    pods.order(2, {ACTOR: actor.uid}, generations={ACTOR: 1})
    eventually("the second life", lambda: actor.output().count("learns at 0.5") == 2)
    actor.signal(signal.SIGKILL)
    actor.wait()
    actor.start()
    pods.order(2, {ACTOR: actor.uid}, generations={ACTOR: 2})
    eventually("a new container to know the job", lambda: actor.output().count("learns at 0.5") == 3)
    seen = eventually("its launcher", lambda: pods.seen(ACTOR))
    assert seen.container_restart_count == 1


def test_an_engine_is_replaced_only_by_an_epoch_that_runs_it_otherwise(pods: Pods) -> None:
    pods.raise_epoch(1, pods.job)
    pods.order(1, {ROLLOUT: "uid-rollout-0"})
    container = pods.worker(ROLLOUT)
    container.start()
    first = engine(pods)
    pods.raise_epoch(2, changed(pods.job, 0.5))
    pods.order(2, {ROLLOUT: container.uid})
    container.replies("learns at 0.5")
    assert engine(pods) == first
    values = pods.job.model_dump()
    values["spec"]["roles"]["rollout"]["threads"] = 2
    pods.raise_epoch(3, RLJob.model_validate(values))
    pods.order(3, {ROLLOUT: container.uid})
    eventually("another engine", lambda: engine(pods) != first)
    eventually("the pod to be ready", container.is_ready)
    assert pods.status().failures == []


def test_a_pod_whose_job_is_done_stays_until_sigterm(pods: Pods, actor: Container) -> None:
    pods.order(1, {ACTOR: actor.uid}, PodPhase.DONE)
    actor.replies("[actor-0.0] drained")
    eventually("no rank", lambda: ranks_up(actor) == 0)
    assert actor.is_ready()
    assert actor.process is not None
    assert actor.process.poll() is None
    actor.signal(signal.SIGTERM)
    assert actor.wait() == 0


def test_a_pod_whose_job_is_done_reports_no_engine(pods: Pods) -> None:
    pods.raise_epoch(1)
    pods.order(1, {ROLLOUT: "uid-rollout-0"})
    pods.worker(ROLLOUT).start()
    engine(pods)
    pods.order(1, {ROLLOUT: "uid-rollout-0"}, PodPhase.DONE)
    eventually("no engine", lambda: (seen := pods.seen(ROLLOUT)) is not None and not seen.engines)


def test_sigterm_drains_the_ranks(pods: Pods, actor: Container) -> None:
    seen = pods.seen(ACTOR)
    assert seen is not None
    actor.signal(signal.SIGTERM)
    assert actor.wait() == EXIT_TERMINATED
    assert not any(is_running(row.pid) for row in seen.ranks)
    assert pods.status().failures == []
    assert (actor.folder / TERMINATION_FILE.lstrip("/")).read_text() == ASKED_TO_END


def test_a_pod_that_lost_its_replica_to_another_is_fenced_and_waits_as_a_new_container(
    pods: Pods, actor: Container
) -> None:
    other = pods.worker(ACTOR, "uid-other")
    other.start()
    pods.order(1, {ACTOR: other.uid}, generations={ACTOR: 1})
    assert actor.wait() == EXIT_FENCED
    eventually("the other pod to be ready", other.is_ready)
    actor.start()
    eventually("its probes", lambda: actor.probe("/livez")[0] == 200)
    assert actor.probe("/startupz")[0] == 503
    seen = pods.seen(ACTOR)
    assert seen is not None
    assert seen.pod_uid == "uid-other"
    assert [rank.state for rank in seen.ranks] == [RankState.READY]


def test_a_silent_client_of_the_probes_blocks_no_one(actor: Container) -> None:
    with socket.create_connection(("127.0.0.1", actor.port)) as silent:
        silent.sendall(b"GET /li")
        assert actor.probe("/livez")[0] == 200
        assert actor.probe("/nothing")[0] == 404


def test_a_variable_that_is_missing_is_one_sentence(pods: Pods) -> None:
    container = pods.worker(ACTOR, without="RLJOB_POD_IP")
    container.start()
    assert container.wait() == EXIT_BAD_MANIFEST
    assert container.output().strip().splitlines() == [
        "RLJOB_POD_IP is not set. Set it in the pod's template; the operator of this version does."
    ]


def test_the_coordinator_leaves_at_sigterm(pods: Pods) -> None:
    pods.raise_epoch(1)
    assert pods.coordinator is not None
    pods.coordinator.send_signal(signal.SIGTERM)
    assert pods.coordinator.wait(240) == 0


def engine(pods: Pods) -> str:
    """The incarnation that answers."""

    def look() -> str | None:
        seen = pods.seen(ROLLOUT)
        return next((each.incarnation for each in seen.engines if each.state == "Running"), None) if seen else None

    return eventually("the engine", look)


def ranks_up(container: Container) -> float | None:
    lines = container.probe("/metrics")[1].splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith("rljob_pod_ranks_up")), None)
