"""The client against a server that has none of our extensions."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch

from rljob_workers.engines.base import VersionSpan
from rljob_workers.engines.errors import EngineRefused
from rljob_workers.engines.sglang_dialect.client import SglangDialectEngine
from tests.integration.engines.plain_server import plain_server
from tests.integration.engines.test_engine_client import FIRST, params, soon
from tests.near import assert_log_probs_near


def test_samples_are_those_that_the_extensions_give(server_url: str, first_weights: Path) -> None:
    prompts, wanted = [[1, 2, 3], [4]], [params(num_samples=3, seed=5), params(num_samples=2, seed=9)]
    with plain_server(server_url) as (url, prompts_asked), closing(SglangDialectEngine(url)) as engine:
        engine.abort_all()
        with pytest.raises(EngineRefused, match="No weights are loaded yet"):
            engine.generate(prompts, wanted, deadline=soon())
        engine.update_weights(first_weights, FIRST, deadline=soon())
        assert engine.held() == FIRST
        assert engine.max_tokens() == 1024
        plain = engine.generate(prompts, wanted, deadline=soon())
        assert prompts_asked[-1] == 5, "a prompt per sample, each with its own seed"
    with closing(SglangDialectEngine(server_url)) as engine:
        extended = engine.generate(prompts, wanted, deadline=soon())
    assert [len(generation.samples) for generation in plain] == [3, 2]
    for ours, theirs in zip(extended, plain, strict=True):
        for one, other in zip(ours.samples, theirs.samples, strict=True):
            assert one.output_ids == other.output_ids
            assert_log_probs_near(torch.tensor(other.log_probs), torch.tensor(one.log_probs))
            assert other.spans == (VersionSpan(FIRST, 0, len(other.output_ids)),)
