"""Infrastructure that its cluster starts again and again: for nothing only if the job comes no step forward."""

from rljob_operator.core import PodState, ProcessFact
from rljob_operator.core.infrastructure import MAX_IN_VAIN
from tests.unit.core.cluster import Cluster, make_cluster

OUTPUT = "Traceback\nOSError: [Errno 28] No space left on device: '/run/rljob'"


def crashed(world: Cluster, times: int, name: str = "coordinator", exit_code: int = 1) -> None:
    """The kubelet has started it so many times; it is down again."""
    down = world.now
    fact = ProcessFact(
        name, None, alive=False, num_restarts=times, exit_code=exit_code, last_message=OUTPUT, down_since=down
    )
    world.infrastructure = [fact]
    world.answers = False


def starting() -> Cluster:
    world = Cluster(starts=PodState.PENDING, answers=False)
    crashed(world, 0)
    world.turn()
    return world


def in_vain(world: Cluster) -> int:
    return world.status.infrastructure[0].restarts_in_vain


def test_a_job_that_never_becomes_ready_for_it_fails_with_its_last_message() -> None:
    world = starting()
    for times in range(1, MAX_IN_VAIN + 1):
        crashed(world, times)
        world.turn(300)
    assert (world.failure(), in_vain(world)) == (None, MAX_IN_VAIN)
    crashed(world, MAX_IN_VAIN + 1)
    world.turn(300)
    assert world.failure() == (
        "InfrastructureFailing",
        "coordinator has ended 9 times since the job was last Ready or trained a step; the last time it exited with "
        "code 1: OSError: [Errno 28] No space left on device: '/run/rljob'",
    )


def test_who_was_killed_has_stated_nothing_about_it() -> None:
    world = starting()
    crashed(world, MAX_IN_VAIN + 1, exit_code=-9)
    world.turn()
    found = world.failure()
    assert found is not None
    assert found[1].endswith("the last time it was killed by signal 9")


def test_an_operator_that_begins_in_the_midst_goes_on_counting() -> None:
    world = starting()
    crashed(world, 5)
    world.turn()
    world.status = type(world.status).model_validate_json(world.status.model_dump_json(by_alias=True))
    crashed(world, MAX_IN_VAIN + 1)
    world.turn()
    assert world.failure() is not None


def test_what_was_counted_of_a_process_outlasts_a_moment_without_its_pod() -> None:
    world = starting()
    world.processes = frozenset({"coordinator", "control"})
    crashed(world, 5)
    world.turn()
    assert in_vain(world) == 5
    world.infrastructure = [ProcessFact("control", None, alive=True)]
    world.turn()
    counted = {process.name: process.restarts_in_vain for process in world.status.infrastructure}
    assert counted == {"control": 0, "coordinator": 5}

    world.processes = frozenset({"control"})
    world.turn()
    assert [process.name for process in world.status.infrastructure] == ["control"], "the job has no other any more"


def test_a_step_or_becoming_ready_between_two_ends_forgets_those_before() -> None:
    world = make_cluster()
    for times in range(1, 4 * MAX_IN_VAIN):
        crashed(world, times)
        world.turn(1)
        world.answers = True
        world.infrastructure = [ProcessFact("coordinator", None, alive=True, num_restarts=times)]
        world.step += 1
        world.turn(1)
        assert in_vain(world) == 0
    assert world.failure() is None


def test_a_job_that_stays_ready_and_trains_nothing_does_not_forget() -> None:
    world = make_cluster()
    world.infrastructure = [ProcessFact("storage-0", None, alive=True)]
    world.turn()
    for times in range(1, MAX_IN_VAIN + 2):
        world.infrastructure = [ProcessFact("storage-0", None, alive=False, num_restarts=times, exit_code=1)]
        world.turn(1)
    assert world.failure() is not None


def test_a_pod_that_takes_the_place_of_another_counts_from_nothing_and_loses_nothing() -> None:
    world = starting()
    crashed(world, 5)
    world.turn()
    crashed(world, 0)  # another pod
    world.turn()
    crashed(world, 1)
    world.turn()
    assert in_vain(world) == 6
