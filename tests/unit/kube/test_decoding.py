"""An object nested without end is its own job's affair: lists and watches that it is in are read all the same."""

from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.kube.accepted_spec import AcceptedSpec, InvalidManifest
from rljob_operator.kube.api import Api
from rljob_operator.kube.responses import DEEPEST, decoded
from rljob_operator.kube.stored_spec import StoredSpec
from rljob_operator.kube.views import JobKey
from tests.unit.api.manifests import changed


def nested(levels: int, kind: str = "map") -> bytes:
    opening, closing = (b'{"a":', b"}") if kind == "map" else (b"[", b"]")
    return opening * levels + b'"{[\\"]}"' + closing * levels


@pytest.mark.parametrize("kind", ["map", "list"])
@pytest.mark.parametrize("levels", [10, 1000, 1100, 10_000])
def test_what_lies_beside_the_deep_is_whole(levels: int, kind: str) -> None:
    text = b'{"items":[{"before":1},{"deep":%s},{"after":["}",{"a":[]}]}]}' % nested(levels, kind)
    found = decoded(text)["items"]
    assert (found[0], found[2]) == ({"before": 1}, {"after": ["}", {"a": []}]})
    depth, inner = 0, found[1]["deep"]
    while isinstance(inner, dict | list) and inner:
        depth, inner = depth + 1, inner["a"] if isinstance(inner, dict) else inner[0]
    assert (depth, inner) == ((levels, '{["]}') if levels <= 1000 else (DEEPEST - 3, None))


def test_a_job_that_was_cut_is_refused() -> None:
    spec = changed({"spec.roles": {"rollout": {"template": {"spec": {}}}}})["spec"]
    text = orjson.dumps(spec).replace(b'"template":{"spec":{}', b'"template":{"spec":' + nested(2000))
    spec_retained = StoredSpec.of(decoded(text))
    raw: dict[str, Any] = {"metadata": {"generation": 1, "resourceVersion": "1"}, "spec": spec_retained, "status": {}}
    assert isinstance(AcceptedSpec(cast(Api, None), JobKey("ns", "job")).job(raw), InvalidManifest)


@given(st.binary())
def test_what_is_no_json_is_stated_to_be_none(text: bytes) -> None:
    try:
        expected = orjson.loads(text)
    except orjson.JSONDecodeError:
        with pytest.raises(orjson.JSONDecodeError):
            decoded(text)
    else:
        assert decoded(text) == expected
