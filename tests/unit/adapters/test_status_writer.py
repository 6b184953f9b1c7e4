"""Which part of a status must be written at once, and as what patch."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import Role
from rljob_api.status import PodStatus, RLJobStatus, RoleStatus, TrainingStatus
from rljob_operator.adapters.status_writer import decisive, merge_patch

VALUES = st.recursive(
    st.integers(0, 3) | st.text("ab", max_size=2) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=3)


def test_progress_alone_is_not_decisive() -> None:
    before = RLJobStatus(training=TrainingStatus(step=3))

    assert decisive(before) == decisive(RLJobStatus(training=TrainingStatus(step=4, reward=0.5)))


def test_what_an_order_follows_from_is_decisive() -> None:
    def status(generation: int) -> RLJobStatus:
        pod = PodStatus(name="actor-0", ready=True, generation=generation)
        return RLJobStatus(roles=[RoleStatus(name=Role.ACTOR, replicas=1, ready=1, failures=0, pods=[pod])])

    assert decisive(status(0)) != decisive(status(1))


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_turns_the_old_into_the_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert merged(old, merge_patch(old, new)) == new


@given(OBJECTS)
def test_nothing_new_makes_an_empty_patch(same: dict[str, Any]) -> None:
    assert merge_patch(same, same) == {}


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
