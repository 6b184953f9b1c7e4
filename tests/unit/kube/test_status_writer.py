"""Which part of a status must be written at once, and as what patch."""

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import Role
from rljob_api.status import (
    PodStatus,
    ProcessStatus,
    RestartStatus,
    RLJobStatus,
    RoleStatus,
    ScalingStatus,
    StalenessStatus,
    TrainingStatus,
)
from rljob_operator.kube.api import Api
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.kinds import RLJOBS
from rljob_operator.kube.status_writer import PROGRESS_SECONDS, Overtaken, StatusWriter, decisive, merge_patch
from rljob_operator.kube.views import JobKey
from tests.unit.kube.fake_api import ApiOfAnswers

VALUES = st.recursive(
    st.integers(0, 3) | st.text("ab", max_size=2) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=3)


def test_progress_alone_is_not_decisive() -> None:
    before = RLJobStatus(training=TrainingStatus(step=3))

    assert decisive(before) == decisive(RLJobStatus(training=TrainingStatus(step=4, reward=0.5)))


def test_where_autoscaling_judges_from_is_progress_and_what_it_decides_is_not() -> None:
    judged = ScalingStatus(desired=2, judged_replicas=2, judged_from_step=4)
    assert decisive(RLJobStatus(scaling=ScalingStatus(desired=2))) == decisive(RLJobStatus(scaling=judged))
    assert decisive(RLJobStatus(scaling=judged)) != decisive(
        RLJobStatus(scaling=judged.model_copy(update={"desired": 3}))
    )


def test_what_an_order_follows_from_is_decisive() -> None:
    def status(generation: int) -> RLJobStatus:
        pod = PodStatus(name="actor-0", ready=True, generation=generation)
        return RLJobStatus(roles=[RoleStatus(name=Role.ACTOR, replicas=1, ready=1, failures=0, pods=[pod])])

    assert decisive(status(0)) != decisive(status(1))


@pytest.mark.parametrize(
    "remembered",
    [
        pytest.param(
            RLJobStatus(infrastructure=[ProcessStatus(name="control", restarts=1)]), id="InfrastructureRestarted"
        ),
        pytest.param(RLJobStatus(training=TrainingStatus(rows_dropped=32)), id="RowsDropped"),
    ],
)
def test_what_an_event_is_remembered_by_is_decisive(remembered: RLJobStatus) -> None:
    """Else each turn reports the event again, until progress is written at last."""
    before = RLJobStatus(infrastructure=[ProcessStatus(name="control", restarts=0)])

    assert decisive(before) != decisive(remembered)


def test_a_higher_staleness_is_decisive_and_a_lower_one_is_not() -> None:
    """The step after it would be all that is ever written."""

    def status(highest: int, current: int = 0) -> RLJobStatus:
        return RLJobStatus(training=TrainingStatus(staleness=StalenessStatus(current=current, max=highest)))

    assert decisive(status(1)) != decisive(status(2))
    assert decisive(status(2, 0)) == decisive(status(2, 2))


def test_the_first_checkpoint_after_a_restart_is_decisive_since_it_ends_the_row_of_restarts() -> None:
    def status(recorded: int) -> RLJobStatus:
        return RLJobStatus(training=TrainingStatus(checkpoint=recorded), restart=RestartStatus(checkpoint=4))

    assert decisive(status(4)) != decisive(status(5))
    assert decisive(status(5)) == decisive(status(6))


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_turns_the_old_into_the_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert merged(old, merge_patch(old, new)) == new


@given(OBJECTS)
def test_nothing_new_makes_an_empty_patch(same: dict[str, Any]) -> None:
    assert merge_patch(same, same) == {}


KEY = JobKey("ns", "job")
PATCH = "PATCH " + RLJOBS.path("ns", "job", "status")


def make_job(version: int, uid: str = "j1") -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": "job", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {}, "status": {}}


@pytest.mark.parametrize(
    ("answers", "left"),
    [
        pytest.param({PATCH: 409, RLJOBS.path("ns", "job"): make_job(8)}, 8, id="somebody wrote: what they wrote"),
        pytest.param({PATCH: 409, RLJOBS.path("ns", "job"): 404}, None, id="deleted after the conflict: nothing"),
        pytest.param({PATCH: 404}, None, id="gone, and no watch told: nothing"),
    ],
)
def test_a_write_that_is_overtaken_leaves_the_newest_state_in_the_cache(
    answers: dict[str, Any], left: int | None
) -> None:
    cache = Cache(lambda key, cause: None)
    raw = make_job(5)
    cache.put_job(raw)
    api = ApiOfAnswers(answers)
    writer = StatusWriter(cast(Api, api), cache, KEY)
    with pytest.raises(Overtaken):
        asyncio.run(writer.write(raw, RLJobStatus(), RLJobStatus(observed_generation=1)))

    assert [patch["metadata"] for patch in api.sent] == [{"uid": "j1", "resourceVersion": "5"}]
    found = cache.job(KEY)
    assert (found and int(found["metadata"]["resourceVersion"])) == left


def test_progress_alone_is_withheld_and_it_is_stated_for_how_long() -> None:
    cache = Cache(lambda key, cause: None)
    first, second = make_job(5), make_job(6)
    second["status"] = {"phase": "Running"}
    writer = StatusWriter(cast(Api, ApiOfAnswers({PATCH: second})), cache, KEY)

    async def write_twice() -> tuple[float | None, float | None, float | None]:
        trained = RLJobStatus(training=TrainingStatus(step=4))
        restarted = RLJobStatus(observed_generation=1)
        return (
            await writer.write(first, RLJobStatus(), RLJobStatus(training=TrainingStatus(step=3))),
            await writer.write(second, RLJobStatus(training=TrainingStatus(step=3)), trained),
            await writer.write(second, RLJobStatus(), restarted),
        )

    wrote, early, decided = asyncio.run(write_twice())
    assert wrote is None
    assert early is not None
    assert 0 < early <= PROGRESS_SECONDS
    assert decided is None


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396, as the API server does it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result
