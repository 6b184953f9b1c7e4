"""Names of weights, shapes of tensors, sentences of errors, and what a version of the server lacks."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.sglang.connection import FIELDS, PATHS, PAUSE_MODES, missing_parts, sentence_of
from rljob_workers.engines.sglang.model_folder import checkpoint_shapes, misfit
from rljob_workers.engines.sglang.sglang_client import FIRST_INTERVAL, LONGEST_INTERVAL, Pace
from rljob_workers.engines.sglang.weight_update import NOTHING, label_of, weight_of


def test_a_weight_s_name_comes_back_as_the_weight() -> None:
    weight = WeightId(lineage=Lineage(3), version=WeightVersion(17))
    assert label_of(weight) == "3:17"
    assert weight_of("3:17") == weight


@pytest.mark.parametrize("label", ["default", NOTHING, "17", ":17", "3:", "a:b", None])
def test_any_other_name_is_that_of_no_weight(label: str | None) -> None:
    assert weight_of(label) is None


@pytest.mark.parametrize(
    "body",
    [{"error": {"message": "why"}}, {"error": "why"}, {"object": "error", "message": "why"}, {"message": "why"}, "why"],
)
def test_a_refusal_s_sentence_is_found_in_each_of_its_shapes(body: object) -> None:
    assert sentence_of(json.dumps(body).encode()) == "why"


def test_a_refusal_may_be_plain_text() -> None:
    assert sentence_of(b"Flush cache failed.\n") == "Flush cache failed."


WANTED = {"a": (2, 3), "b": (4,)}


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"a": (2, 3)}, "tensor b is absent there, but of shape [4] in the model"),
        ({**WANTED, "c": (1,)}, "tensor c is of shape [1] there, but absent in the model"),
        ({**WANTED, "b": (5,)}, "tensor b is of shape [5] there, but of shape [4] in the model"),
    ],
)
def test_weights_that_do_not_fit_are_named_by_their_first_tensor(found: dict[str, tuple[int, ...]], text: str) -> None:
    assert misfit(found, WANTED) == text


def test_weights_that_fit_are_not() -> None:
    assert misfit(dict(WANTED), WANTED) is None


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_in_a_checkpoint_is_no_part_of_an_update(tmp_path: Path, tied: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    save_file({"lm_head.weight": np.ones(2), "model.norm.weight": np.ones(3)}, tmp_path / "model.safetensors")
    assert ("lm_head.weight" in checkpoint_shapes(tmp_path)) is not tied


def described() -> dict[str, Any]:
    """`/openapi.json` of a server that has everything."""
    schemas: dict[str, Any] = {name: {"properties": dict.fromkeys(fields)} for name, fields in FIELDS.items()}
    schemas["PauseGenerationReqInput"] = {"properties": {"mode": {"enum": ["abort", *PAUSE_MODES]}}}
    return {"paths": dict.fromkeys(PATHS), "components": {"schemas": schemas}}


def test_a_server_that_has_everything_lacks_nothing() -> None:
    assert missing_parts(described()) == []


def test_what_a_server_lacks_is_named() -> None:
    old = copy.deepcopy(described())
    del old["paths"]["/pause_generation"]
    del old["components"]["schemas"]["GenerateReqInput"]["properties"]["extra_key"]
    old["components"]["schemas"]["PauseGenerationReqInput"]["properties"]["mode"]["enum"] = ["abort", "retract"]
    assert missing_parts(old) == ["/pause_generation", "extra_key of GenerateReqInput", "the pause mode in_place"]


def test_a_stream_reports_about_once_a_second_once_the_rate_is_known() -> None:
    pace = Pace()
    assert pace.interval == FIRST_INTERVAL
    pace.learn(300, 10.0)
    assert pace.interval == 30
    pace.learn(0, 1.0)
    assert pace.interval == 30


@pytest.mark.parametrize(("tokens", "interval"), [(1, 1), (10**6, LONGEST_INTERVAL)])
def test_no_stream_is_asked_for_less_than_a_token_or_too_many(tokens: int, interval: int) -> None:
    pace = Pace()
    pace.learn(tokens, 10.0)
    assert pace.interval == interval
