"""What a sample is asked for with: a server's or a model's own defaults never count."""

from rljob_workers.engines.base import SamplingParams
from rljob_workers.engines.sglang.sglang_client import sampling_body

PARAMS = SamplingParams(0.7, 0.9, 0, 32, (3,), num_samples=4, seed=9, stop=("</answer>",), min_p=0.2)


def test_everything_is_stated_and_a_top_k_of_all_is_minus_one() -> None:
    assert sampling_body(PARAMS, None, 16) == {
        "n": 1,
        "max_new_tokens": 32,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.2,
        "stop_token_ids": [3],
        "stop": ["</answer>"],
        "stream_interval": 16,
    }


def test_a_seed_is_sent_to_a_server_that_heeds_it() -> None:
    assert sampling_body(PARAMS, 11, 16)["sampling_seed"] == 11
