"""The command line of a SGLang server."""

from pathlib import Path

import pytest

from rljob_api.spec.model import Dtype
from rljob_workers.engines.sglang.sglang_backend import server_flags
from tests.integration.engines.engine_process import tiny_model


def test_a_job_s_own_flags_come_last_so_that_they_win() -> None:
    flags = server_flags(
        tiny_model(), Dtype.FLOAT32, Path("/m"), 30001, tensor_parallel=2, own=["--max-running-requests", "7"]
    )
    assert flags[-2:] == ("--max-running-requests", "7")
    assert {"--model-path=/m", "--port=30001", "--dtype=float32", "--tensor-parallel-size=2"} < set(flags)


def test_a_server_reads_no_weights_but_those_of_an_update() -> None:
    assert "--load-format=dummy" in server_flags(
        tiny_model(), Dtype.FLOAT32, Path("/m"), 30001, tensor_parallel=1, own=()
    )


@pytest.mark.parametrize(
    ("dtype", "head_dtype", "is_given"),
    [
        (Dtype.BFLOAT16, Dtype.FLOAT32, True),
        (Dtype.BFLOAT16, Dtype.BFLOAT16, False),
        (Dtype.FLOAT32, Dtype.FLOAT32, False),
    ],
)
def test_logits_are_float32_where_the_trainer_s_are(dtype: Dtype, head_dtype: Dtype, is_given: bool) -> None:
    model = tiny_model().model_copy(update={"dtype": dtype})
    flags = server_flags(model, head_dtype, Path("/m"), 30001, tensor_parallel=1, own=())
    assert ("--enable-fp32-lm-head" in flags) == is_given
