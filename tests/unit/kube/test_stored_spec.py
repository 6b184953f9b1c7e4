"""What the cache keeps of a spec: all of it, small; nothing of one that is too large or nested too deeply."""

from __future__ import annotations

import json
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec_size import MAX_SPEC_BYTES, size_problem
from rljob_operator.kube.accepted_spec import AcceptedSpec, InvalidManifest, is_ours
from rljob_operator.kube.api import Api
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.stored_spec import BEYOND_64_BITS, StoredSpec
from rljob_operator.kube.views import JobKey
from tests.unit.api.manifests import changed

KEY = JobKey("ns", "job")


def with_environment(entries: int, **more: Any) -> dict[str, Any]:
    env = [{"name": f"E{index}", "value": "x"} for index in range(entries)]
    template = {"spec": {"containers": [{"name": "coordinator", "env": env}]}}
    return cast(dict[str, Any], changed({"spec.infrastructure": {"template": template}, **more})["spec"])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), json_values, max_size=4))
def test_a_spec_is_retained_as_it_was(spec: dict[str, Any]) -> None:
    assert orjson.loads(StoredSpec.of(spec).text()) == json.loads(json.dumps(spec))


def test_a_large_spec_is_named_and_not_retained() -> None:
    stored = StoredSpec.of(with_environment(40_000, **{"spec.managedBy": "rljob.dev/operator"}))
    assert stored.packed == b""
    assert stored.num_bytes > 1_000_000
    raw = {"metadata": {"generation": 1, "resourceVersion": "1"}, "spec": stored, "status": {}}
    assert is_ours(raw)
    job = AcceptedSpec(cast(Api, None), KEY).job(raw)
    assert isinstance(job, InvalidManifest)
    assert job.problems == (
        "spec: is 1162 KiB of JSON, of which infrastructure.template.spec is 1162 KiB, and a cluster takes 128 KiB."
        " Put what is long into a ConfigMap, a volume or the image, and name it in the spec.",
    )


@pytest.mark.parametrize(("size", "is_taken"), [(MAX_SPEC_BYTES, True), (MAX_SPEC_BYTES + 1, False)])
def test_the_bound_is_exact(size: int, *, is_taken: bool) -> None:
    spec = {"image": "x" * (size - len('{"image":""}'))}
    assert (StoredSpec.of(spec).problem == "") is is_taken
    assert (size_problem(spec) is None) is is_taken


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param(2**64 - 1, "", id="the largest"),
        pytest.param(2**64, BEYOND_64_BITS, id="one more"),
        pytest.param(-(2**63), "", id="the smallest"),
        pytest.param(-(2**63) - 1, BEYOND_64_BITS, id="one less"),
    ],
)
def test_an_integer_of_more_than_64_bits_is_named(value: int, problem: str) -> None:
    spec = {"roles": {"rollout": {"template": {"spec": {"terminationGracePeriodSeconds": value}}}}}
    assert StoredSpec.of(spec).problem == problem


def test_the_cache_has_neither_kubectls_copy_nor_labels_and_packs_a_spec_once() -> None:
    spec, woken = with_environment(1000), list[JobKey]()
    cache = Cache(lambda key, _: woken.append(key))
    metadata = {
        "namespace": "ns",
        "name": "job",
        "uid": "u",
        "generation": 1,
        "resourceVersion": "1",
        "labels": {"a": "b" * 9999},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(spec)},
        "managedFields": [{"fieldsV1": spec}],
    }
    cache.put_job({"metadata": metadata, "spec": spec, "status": {}})
    first = cache.job(KEY)
    assert first is not None
    assert set(first["metadata"]) == {"namespace", "name", "uid", "generation", "resourceVersion", "labels"}
    assert first["metadata"]["labels"] == {}, "none but Kueue's"
    assert len(first["spec"].packed) * 5 < len(json.dumps(spec))
    cache.put_job({"metadata": {**metadata, "resourceVersion": "2"}, "spec": spec, "status": {"phase": "Running"}})
    second = cache.job(KEY)
    assert second is not None
    assert second["spec"] is first["spec"]
    newer = {**metadata, "resourceVersion": "3", "generation": 2}
    cache.put_job({"metadata": newer, "spec": with_environment(1), "status": {}})
    third = cache.job(KEY)
    assert third is not None
    assert third["spec"] != first["spec"]


def test_what_is_forgotten_is_parsed_again_and_is_the_same() -> None:
    raw = {
        "metadata": {"generation": 1, "resourceVersion": "1"},
        "spec": StoredSpec.of(with_environment(3)),
        "status": {},
    }
    accepted = AcceptedSpec(cast(Api, None), KEY)
    assert accepted.known(raw) is None
    first = accepted.job(raw)
    assert accepted.known(raw) is first
    accepted.forget()
    assert accepted.known(raw) is None
    assert accepted.job(raw) == first
