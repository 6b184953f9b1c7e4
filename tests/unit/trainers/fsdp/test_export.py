"""Which rank stages which tensor."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.models.blob import rounds
from rljob_workers.trainers.fsdp.stored_tensors import assign

SIZES = st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.integers(1, 1000), min_size=1, max_size=40)


@given(sizes=SIZES, world=st.integers(1, 9))
def test_every_tensor_has_an_owner_and_no_rank_more_than_its_share_and_one_tensor(
    sizes: dict[str, int], world: int
) -> None:
    owners = assign(sizes, world)
    assert list(owners) == list(sizes)
    loads = [sum(size for name, size in sizes.items() if owners[name] == rank) for rank in range(world)]
    assert max(loads) <= sum(sizes.values()) / world + max(sizes.values())
    with_tensors = [rank for rank in range(world) if loads[rank]]
    assert with_tensors == list(range(min(world, len(sizes)))), "the last ranks are those that have none"


def test_all_ranks_come_to_the_same() -> None:
    assert assign({"a": 3, "b": 3, "c": 2, "d": 2, "e": 9}, 2) == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 0}


@given(sizes=SIZES, limit=st.integers(1, 3000))
def test_rounds_hold_all_tensors_in_their_order_and_stay_within_the_limit(sizes: dict[str, int], limit: int) -> None:
    cut = rounds(sizes, limit)
    assert [name for names in cut for name in names] == list(sizes)
    for names in cut:
        assert len(names) == 1 or sum(sizes[name] for name in names) <= limit
