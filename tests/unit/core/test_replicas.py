"""Which pod is which replica: stable, no number twice, and a replacement takes the number of the one it replaces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import Role
from rljob_api.status import PodStatus, RLJobStatus, RoleStatus
from rljob_operator.core.membership import Candidate, assign


def make_status(*members: tuple[str, str]) -> RLJobStatus:
    """Rollouts with these (incarnation, lost incarnation)."""
    pods = [
        PodStatus(name=f"rollout-{n}", ready=False, generation=0, incarnation=incarnation, lost_incarnation=lost)
        for n, (incarnation, lost) in enumerate(members)
    ]
    return RLJobStatus(roles=[RoleStatus(name=Role.ROLLOUT, replicas=len(pods), ready=0, failures=0, pods=pods)])


def numbers(status: RLJobStatus, *candidates: Candidate) -> dict[str, int]:
    """Uid -> number."""
    return {uid: key.replica for uid, key in assign(status, candidates).items()}


def pod(uid: str, created_at: float = 0.0, *, going: bool = False) -> Candidate:
    """A rollout pod."""
    return Candidate(uid, Role.ROLLOUT, created_at, going=going)


@pytest.mark.parametrize(
    ("members", "candidates", "expected"),
    [
        pytest.param([("", ""), ("", "")], [pod("b", 2), pod("a", 1)], {"a": 0, "b": 1}, id="the oldest comes first"),
        pytest.param([("a/0", ""), ("b/3", "")], [pod("b"), pod("a")], {"a": 0, "b": 1}, id="a number is kept"),
        pytest.param([("a/0", "")], [pod("a", going=True), pod("b")], {"a": 0, "b": 1}, id="also while it goes"),
        pytest.param([("", "a/0")], [pod("a", going=True)], {"a": 0}, id="a lost one while nobody replaces it"),
        pytest.param([("", "a/0")], [pod("a", going=True), pod("b")], {"b": 0}, id="its replacement takes its number"),
        pytest.param([("", "a/0"), ("b/0", "")], [pod("b"), pod("c")], {"b": 1, "c": 0}, id="the lowest free number"),
        pytest.param([("a/0", "")], [pod("a"), pod("z", going=True)], {"a": 0}, id="a stranger that goes gets none"),
        pytest.param([("a/0", "")], [], {}, id="no pod, no number"),
    ],
)
def test_numbers(members: list[tuple[str, str]], candidates: list[Candidate], expected: dict[str, int]) -> None:
    assert numbers(make_status(*members), *candidates) == expected


def test_roles_do_not_share_numbers() -> None:
    given_ = assign(RLJobStatus(), [Candidate("a", Role.ACTOR, 1), Candidate("b", Role.ROLLOUT, 0)])
    assert sorted(str(key) for key in given_.values()) == ["actor-0", "rollout-0"]


UIDS = st.sampled_from("abcdefgh")
INCARNATIONS = st.one_of(st.just(""), UIDS.map(lambda uid: f"{uid}/0"))
MEMBERS = st.lists(st.tuples(INCARNATIONS, INCARNATIONS), max_size=5)
CANDIDATES = st.lists(
    st.builds(pod, UIDS, st.floats(0, 9), going=st.booleans()), max_size=8, unique_by=lambda candidate: candidate.uid
)


@given(MEMBERS, CANDIDATES)
def test_no_number_is_given_twice_and_the_order_of_the_list_does_not_matter(
    members: list[tuple[str, str]], candidates: list[Candidate]
) -> None:
    status = make_status(*members)
    found = numbers(status, *candidates)
    assert len(set(found.values())) == len(found)
    assert set(found) <= {candidate.uid for candidate in candidates}
    assert numbers(status, *reversed(candidates)) == found
    there = {candidate.uid for candidate in candidates}
    incarnations = [incarnation.partition("/")[0] for incarnation, _ in members]
    for number, uid in enumerate(incarnations):
        if uid in there and incarnations.index(uid) == number:
            assert found[uid] == number
    live = {candidate.uid for candidate in candidates if not candidate.going} - set(found)
    lost = {incarnation.partition("/")[0] for _, incarnation in members}
    assert live <= lost, "every live pod has a number, unless it was given up and replaced"
