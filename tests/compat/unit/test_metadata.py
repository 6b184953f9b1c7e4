"""Batches as users cut and join them."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rljob_transfer_queue.kv_metadata import KVBatchMeta
from rljob_transfer_queue.metadata import BatchMeta
from rljob_transfer_queue.schema import make_schema


def make_batch(size: int = 5, *names: str, first: int = 0, **options: Any) -> BatchMeta:
    schemas = {name: make_schema(torch.int64, [(3,)], nested=False) for name in names or ("a", "b")}
    return BatchMeta(range(first, first + size), ["p"] * size, schemas, np.ones(size), **options)


def test_a_batch_states_what_it_has() -> None:
    batch = make_batch()
    assert (len(batch), batch.size, batch.field_names, batch.is_ready) == (5, 5, ["a", "b"], True)
    assert (BatchMeta.empty().is_ready, BatchMeta([1], ["p"]).is_ready) == (False, False)
    assert batch.get_shapes("a") == [(3,)] * 5
    assert batch.get_dtypes("b") == [torch.int64] * 5
    assert "is_ready=True" in str(batch)


@pytest.mark.parametrize(("parts", "sizes"), [(1, [5]), (2, [3, 2]), (5, [1] * 5), (7, [1] * 5 + [0] * 2)], ids=str)
def test_parts_are_as_even_as_can_be_and_join_again(parts: int, sizes: list[int]) -> None:
    batch = make_batch(custom_meta=[{"row": row} for row in range(5)], extra_info={"step": 1})
    cut = batch.chunk(parts)
    assert [part.size for part in cut] == sizes
    joined = BatchMeta.concat(cut)
    assert (joined.global_indexes, joined.custom_meta) == (batch.global_indexes, batch.custom_meta)
    assert (joined.extra_info, joined.field_schema) == (batch.extra_info, batch.field_schema)


def test_rows_of_other_shapes_join_as_nested() -> None:
    other = BatchMeta([9], ["p"], {"a": make_schema(torch.int64, [(4,)], nested=False)}, [1])
    schema = BatchMeta.concat([make_batch(2, "a"), other]).field_schema["a"]
    assert (schema["is_nested"], schema["shape"]) == (True, None)
    assert schema["per_sample_shapes"] == [(3,), (3,), (4,)]


def test_positions_slices_and_order() -> None:
    batch = make_batch()
    assert batch[-1].global_indexes == [4]
    assert batch[1:4:2].global_indexes == [1, 3]
    batch.reorder([4, 3, 2, 1, 0])
    assert batch.global_indexes == [4, 3, 2, 1, 0]
    with pytest.raises(IndexError):
        batch[5]


def test_a_selection_is_its_own() -> None:
    batch = make_batch(custom_meta=[{"deep": []} for _ in range(5)], extra_info={"list": [1]})
    chosen = batch.select_fields(["b", "never"])
    chosen.custom_meta[0]["deep"].append(1)
    chosen.extra_info["list"].append(2)
    chosen.field_schema["b"]["shape"] = None
    assert chosen.field_names == ["b"]
    assert (batch.custom_meta[0], batch.extra_info, batch.field_schema["b"]["shape"]) == (
        {"deep": []},
        {"list": [1]},
        (3,),
    )


def test_fields_of_the_same_rows_are_united() -> None:
    one, other = make_batch(2, "a"), make_batch(2, "b", custom_meta=[{"x": 1}, {}])
    other.production_status[1] = 0
    both = one.union(other)
    assert (both.field_names, both.production_status.tolist()) == (["a", "b"], [1, 0])
    assert both.custom_meta == [{"x": 1}, {}]
    assert one.union(BatchMeta.empty()).field_names == ["a"]
    assert BatchMeta.empty().union(one).field_names == ["a"]


def test_fields_are_added_with_their_shapes() -> None:
    batch = BatchMeta([0, 1], ["p", "q"])
    nested = torch.nested.as_nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)
    batch.add_fields(TensorDict({"n": nested, "s": torch.zeros(2), "t": ["x", "y"]}, batch_size=[2]))
    assert batch.is_ready
    assert [batch.get_shapes(name) for name in ("n", "s", "t")] == [[(2,), (1,)], [(1,), (1,)], [None, None]]
    assert batch.field_schema["t"]["is_non_tensor"]
    assert [part.partition_ids for part in batch.chunk_by_partition()] == [["p"], ["q"]]


def test_a_row_is_looked_at_and_not_changed() -> None:
    view = make_batch(2, custom_meta=[{"uid": "x"}, {}]).samples[-2]
    assert (view.global_index, view.partition_id, view.production_status) == (0, "p", 1)
    assert (view.custom_meta["uid"], view.fields["a"]["shape"]) == ("x", (3,))
    with pytest.raises(TypeError):
        view.fields["a"]["shape"] = None


def test_batches_go_from_process_to_process() -> None:
    batch = make_batch(extra_info={"step": 1})
    found = pickle.loads(pickle.dumps(batch))
    assert (found.global_indexes, found.field_schema, found.extra_info) == (
        batch.global_indexes,
        batch.field_schema,
        batch.extra_info,
    )
    found.production_status[0] = 0


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (lambda: BatchMeta([1, 2], ["p"]), "partition_ids has length 1, global_indexes has length 2"),
        (lambda: make_batch(2, custom_meta=[{}]), "custom_meta has length 1"),
        (lambda: make_batch().select_samples([5]), "must lie in the range from 0 to 4"),
        (lambda: make_batch().reorder([0]), "1 indices were given for 5 rows"),
        (lambda: make_batch(2).reorder([0, 0]), "an index is there twice"),
        (lambda: make_batch(2).update_custom_meta([{}]), "1 dicts were given for 2 rows"),
        (lambda: make_batch(2).union(make_batch(2, first=1)), "global_indexes are [0, 1] and [1, 2]"),
        (lambda: BatchMeta.concat([make_batch(2, "a"), make_batch(2, "b")]), "part 1 has the fields ['b']"),
        (
            lambda: BatchMeta.concat([make_batch(1, extra_info={"k": 1}), make_batch(1, extra_info={"k": 2})]),
            "extra_info says two things of 'k': 1 and 2",
        ),
        (lambda: make_batch(2).add_fields(TensorDict({"x": torch.ones(3)}, batch_size=[3])), "3 rows were given"),
        (lambda: KVBatchMeta(["a"], []), "there are 1 keys and 0 tags"),
        (lambda: KVBatchMeta(["a", "a"], [{}, {}]), "keys has something twice"),
        (lambda: KVBatchMeta(["a"], [{}]).reorder([0, 0]), "2 indexes were given for 1 rows"),
        (
            lambda: KVBatchMeta.concat([KVBatchMeta(["a"], [{}], "p"), KVBatchMeta(["b"], [{}], "q")]),
            "parts are of partitions q and p",
        ),
    ],
)
def test_a_mistake_gets_a_sentence(mistake: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        mistake()


def test_keys_are_cut_joined_and_selected() -> None:
    batch = KVBatchMeta(["a", "b", "c"], [{"n": 0}, {"n": 1}, {"n": 2}], "p", ["x"], {"step": 1})
    assert [part.keys for part in batch.chunk(2)] == [["a", "b"], ["c"]]
    joined = KVBatchMeta.concat(batch.chunk(4))
    assert (joined.keys, joined.tags, joined.fields, joined.extra_info) == (
        batch.keys,
        batch.tags,
        batch.fields,
        batch.extra_info,
    )
    assert batch.select_keys(["c", "a"]).tags == [{"n": 2}, {"n": 0}]
    with pytest.raises(RuntimeError, match=r"\['z'\] are no keys of this batch"):
        batch.select_keys(["z"])
    batch.reorder([2, 0, 1])
    assert (batch.keys, batch.tags[0]) == (["c", "a", "b"], {"n": 2})
