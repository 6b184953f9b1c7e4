"""Ranks: started, restarted and drained as ordered; every death reported once, with its cause and last message."""

import os
import signal

import pytest

from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_CUT_OFF, EXIT_FENCED, EXIT_GROUP_BROKEN, EXIT_TERMINATED
from rljob_api.wire.epochs import PodPhase
from rljob_api.wire.failures import FailureKind
from rljob_api.wire.processes import LauncherExited
from tests.integration.launcher.conftest import ACTOR, ROLLOUT, Machine, eventually, is_running


def test_a_killed_rank_is_reported_once_and_started_only_when_ordered(machine: Machine) -> None:
    machine.spawn(ACTOR, restart_count=2)
    machine.coordinator.order(ACTOR)
    first = machine.rank(ACTOR)
    os.kill(first.pid, signal.SIGKILL)
    failure = machine.failure()
    assert failure.id == f"uid-actor-0/2/{first.incarnation}"
    assert (failure.kind, failure.pod, failure.rank) == (FailureKind.RANK_EXITED, ACTOR, 0)
    assert (failure.epoch, failure.generation, failure.exit_code) == (1, 0, -9)
    assert failure.message.startswith("actor-0.0 was killed by SIGKILL: ")
    assert failure.last_words == f"life {first.incarnation} of epoch 1 begins"
    reported = machine.poll(ACTOR, "a poll with the death", lambda poll: poll.ranks[0].exit_code == -9)
    assert reported.ranks[0].incarnation == first.incarnation
    machine.coordinator.order(ACTOR, generation=1)
    second = machine.rank(ACTOR, generation=1)
    assert second.incarnation != first.incarnation
    assert machine.log("actor-0.0").count("begins") == 2
    assert len(machine.coordinator.failures) == 1
    assert machine.finish(ACTOR, generation=1).exit_code == 0


def test_a_new_epoch_replaces_a_healthy_rank_without_a_report(machine: Machine) -> None:
    machine.spawn(ACTOR)
    machine.coordinator.order(ACTOR)
    first = machine.rank(ACTOR)
    machine.coordinator.order(ACTOR, epoch=2)
    machine.rank(ACTOR, epoch=2)
    assert not is_running(first.pid)
    assert machine.finish(ACTOR, epoch=2).exit_code == 0
    assert machine.coordinator.failures == []


def test_a_stopped_rank_is_replaced_too(machine: Machine) -> None:
    machine.spawn(ACTOR)
    machine.coordinator.order(ACTOR)
    first = machine.rank(ACTOR)
    os.kill(first.pid, signal.SIGSTOP)
    machine.coordinator.order(ACTOR, generation=1)
    second = machine.rank(ACTOR, generation=1)
    assert not is_running(first.pid)
    os.kill(second.pid, signal.SIGSTOP)
    assert machine.finish(ACTOR, generation=1).exit_code == 0
    assert "actor-0.0: killed, since it is stopped (SIGSTOP), and the job is done" in machine.log("actor-0")


@pytest.mark.long
@pytest.mark.parametrize("machine", [1], indirect=True)
def test_a_rank_that_is_stopped_before_it_has_beaten_is_named_by_its_launcher(machine: Machine) -> None:
    machine.spawn(ACTOR)
    machine.coordinator.order(ACTOR)
    os.kill(machine.rank(ACTOR).pid, signal.SIGSTOP)
    assert machine.failure().message == "actor-0.0 was killed by SIGKILL: it was stopped (SIGSTOP) for 6 s"


@pytest.mark.parametrize(
    ("act", "code", "message", "last_message"),
    [
        pytest.param("exit 7", 7, "exited with code 7", "begins", id="an exit code"),
        pytest.param(
            "raise no more rows",
            1,
            "exited with code 1: RuntimeError: no more rows",
            "RuntimeError: no more rows",
            id="an exception",
        ),
        pytest.param(
            "refuse /absent",
            EXIT_BAD_MANIFEST,
            "refuses its configuration: model.path: /absent is not a folder.",
            "model.path: /absent is not a folder. Give a folder with tokenizer.json or the like.",
            id="a sentence for the user",
        ),
    ],
)
def test_what_a_rank_died_of_is_stated(machine: Machine, act: str, code: int, message: str, last_message: str) -> None:
    machine.spawn(ACTOR)
    machine.coordinator.order(ACTOR)
    machine.rank(ACTOR)
    machine.act(act)
    failure = machine.failure()
    assert failure.exit_code == code
    assert message in failure.message
    assert failure.last_words.splitlines()[-1].endswith(last_message)
    assert ("Traceback" in failure.last_words) is act.startswith("raise")


@pytest.mark.parametrize(
    ("act", "code"),
    [
        pytest.param("lose-queue the control Redis has not answered", EXIT_CUT_OFF, id="no answer"),
        pytest.param("refused-by-queue WRONGPASS invalid username-password pair", 1, id="a wrong password"),
    ],
)
def test_a_rank_that_alone_does_not_reach_the_queue_is_a_failure_like_any_other(
    machine: Machine, act: str, code: int
) -> None:
    """Its launcher is answered: the next rank would leave for the same, again and again."""
    machine.spawn(ACTOR)
    machine.coordinator.order(ACTOR)
    machine.rank(ACTOR)
    machine.act(act)
    failure = machine.failure()
    assert (failure.exit_code, failure.cut_off) == (code, False)


def test_a_rank_that_leaves_by_itself_is_no_failure_and_stays_away(machine: Machine) -> None:
    machine.spawn(ACTOR)
    machine.coordinator.order(ACTOR)
    machine.rank(ACTOR)
    machine.act("exit 0")
    machine.poll(ACTOR, "the exit", lambda poll: poll.ranks[0].exit_code == 0)
    assert machine.finish(ACTOR).exit_code == 0
    assert machine.coordinator.failures == []
    assert machine.log("actor-0.0").count("begins") == 1


@pytest.mark.parametrize("text", ["fence", "fence-queue"])
def test_a_rank_that_coordinator_or_queue_fenced_is_no_failure_once_the_order_has_come(
    machine: Machine, text: str
) -> None:
    machine.spawn(ACTOR)
    machine.coordinator.order(ACTOR)
    machine.rank(ACTOR)
    machine.act(f"{text} a later life has begun")
    machine.poll(ACTOR, "the exit", lambda poll: poll.ranks[0].exit_code == EXIT_FENCED)
    machine.coordinator.order(ACTOR, epoch=2)
    machine.rank(ACTOR, epoch=2)
    assert machine.finish(ACTOR, epoch=2).exit_code == 0
    assert machine.coordinator.failures == []


def test_a_fenced_rank_for_which_no_order_comes_is_a_failure(machine: Machine) -> None:
    machine.spawn(ACTOR)
    machine.coordinator.order(ACTOR)
    machine.rank(ACTOR)
    machine.act("fence a later life has begun")
    failure = machine.failure()
    assert failure.exit_code == EXIT_FENCED
    assert "this life is over: a later life has begun" in failure.message


def test_a_rank_whose_group_broke_is_no_failure_once_the_order_has_come_and_has_reported_how_far_it_was(
    machine: Machine,
) -> None:
    machine.spawn(ACTOR)
    machine.coordinator.order(ACTOR)
    machine.rank(ACTOR)
    machine.act(f"exit {EXIT_GROUP_BROKEN}")
    poll = machine.poll(ACTOR, "the exit", lambda poll: poll.ranks[0].exit_code == EXIT_GROUP_BROKEN)
    assert (poll.ranks[0].collectives, poll.ranks[0].is_within_collective) == (2, True)
    machine.coordinator.order(ACTOR, epoch=2)
    machine.rank(ACTOR, epoch=2)
    assert machine.finish(ACTOR, epoch=2).exit_code == 0
    assert machine.coordinator.failures == []


def test_draining_ends_the_rank_and_keeps_the_launcher(machine: Machine) -> None:
    launcher = machine.spawn(ACTOR)
    machine.coordinator.order(ACTOR)
    machine.rank(ACTOR)
    machine.coordinator.order(ACTOR, phase=PodPhase.DRAIN)
    machine.poll(ACTOR, "the drained rank", lambda poll: poll.ranks[0].exit_code == 0)
    assert is_running(launcher)
    assert machine.finish(ACTOR).exit_code == 0
    assert machine.coordinator.failures == []


def test_sigterm_to_a_launcher_drains_its_rank(machine: Machine) -> None:
    launcher = machine.spawn(ACTOR)
    machine.coordinator.order(ACTOR)
    rank = machine.rank(ACTOR)
    os.kill(launcher, signal.SIGTERM)
    assert machine.expect(LauncherExited).exit_code == EXIT_TERMINATED
    assert not is_running(rank.pid)
    assert "asked to drain" in machine.log("actor-0")
    assert "exited with code 0" in machine.log("actor-0")


def test_a_report_is_repeated_until_the_coordinator_takes_it(machine: Machine) -> None:
    machine.spawn(ACTOR)
    machine.coordinator.order(ACTOR)
    rank = machine.rank(ACTOR)
    machine.coordinator.refuse_failures = 3
    os.kill(rank.pid, signal.SIGKILL)
    assert machine.failure().exit_code == -9
    assert machine.coordinator.refuse_failures == 0


def test_a_second_launcher_of_a_pod_ends_the_first_with_all_it_runs(machine: Machine) -> None:
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    rank, engine = machine.rank(ROLLOUT), machine.engine(ROLLOUT)
    second = machine.spawn(ROLLOUT, restart_count=1)
    gone = machine.expect(LauncherExited)
    assert (gone.exit_code, gone.pid != second) == (EXIT_FENCED, True)
    eventually(
        "the first one's rank and engine to be gone", lambda: not is_running(rank.pid) and not is_running(engine.pid)
    )
    assert machine.rank(ROLLOUT).pid != rank.pid


def test_a_sigkilled_launcher_leaves_neither_rank_nor_engine(machine: Machine) -> None:
    launcher = machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    children = [machine.rank(ROLLOUT).pid, machine.engine(ROLLOUT).pid]
    os.kill(launcher, signal.SIGKILL)
    assert machine.expect(LauncherExited).exit_code == -9
    eventually("rank and engine to be gone", lambda: not any(is_running(pid) for pid in children))


def test_a_sigkilled_parent_leaves_nothing(machine: Machine) -> None:
    launchers = [machine.spawn(ROLLOUT), machine.spawn(ACTOR)]
    machine.coordinator.order(ROLLOUT)
    machine.coordinator.order(ACTOR)
    all_pids = [*launchers, machine.rank(ROLLOUT).pid, machine.engine(ROLLOUT).pid, machine.rank(ACTOR).pid]
    os.kill(machine.process.pid, signal.SIGKILL)
    eventually("everything to be gone", lambda: not any(is_running(pid) for pid in all_pids))


def test_the_end_of_the_supervisors_socket_ends_everything_even_what_is_stopped(machine: Machine) -> None:
    launcher = machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    all_pids = [launcher, machine.rank(ROLLOUT).pid, machine.engine(ROLLOUT).pid]
    for pid in all_pids:
        os.kill(pid, signal.SIGSTOP)
    machine.control.close()
    assert machine.process.wait(240) == 0
    eventually("everything to be gone", lambda: not any(is_running(pid) for pid in all_pids))


def test_what_a_dead_rank_had_started_goes_with_it(machine: Machine) -> None:
    machine.spawn(ACTOR)
    machine.coordinator.order(ACTOR)
    machine.rank(ACTOR)
    machine.act("leave")
    machine.failure()
    left = int((machine.run_dir / "left").read_text())
    eventually("the rank's own child to be gone", lambda: not is_running(left))


def test_a_rank_holds_nothing_of_its_launcher_and_parent(machine: Machine) -> None:
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    machine.engine(ROLLOUT)
    os.kill(machine.rank(ROLLOUT).pid, signal.SIGKILL)
    machine.coordinator.order(ROLLOUT, generation=1)  # a rank forked while polls and probes are under way
    rank = machine.rank(ROLLOUT, generation=1)
    held = (machine.run_dir / f"descriptors.{rank.pid}").read_text().splitlines()
    assert [name for name in held if name.startswith(("socket:", "pipe:", "anon_inode:"))] == []


def test_the_highest_seq_outlives_the_rank_that_saw_it(machine: Machine) -> None:
    machine.spawn(ACTOR)
    machine.coordinator.order(ACTOR, epoch=3)
    rank = machine.rank(ACTOR, epoch=3)
    os.kill(rank.pid, signal.SIGKILL)
    machine.failure()
    machine.poll(ACTOR, "the seq", lambda poll: poll.ranks[0].exit_code == -9 and poll.seen_seq == 300)


def test_a_parent_goes_on_after_the_end_of_a_launcher(machine: Machine) -> None:
    """An end wakes the parent with nothing to read on its socket: it must not wait there, nor take it for broken."""
    for launcher in [machine.spawn(ROLLOUT), machine.spawn(ACTOR)]:
        os.kill(launcher, signal.SIGKILL)
        assert machine.expect(LauncherExited).pid == launcher
    machine.spawn(ACTOR, restart_count=1)
    machine.coordinator.order(ACTOR)
    machine.rank(ACTOR)
