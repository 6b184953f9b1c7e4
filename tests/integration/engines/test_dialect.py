"""SGLang's dialect as any of its clients speaks it, against a real server."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.engines.engine_process import engine_process, open_listener, tiny_model, url_of, write_weights

INCARNATION = "0123456789ab"


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server with weights."""
    weights = write_weights(tmp_path_factory.mktemp("weights"), tiny_model())
    with (
        open_listener() as listener,
        engine_process(listener, tiny_model(), INCARNATION, halting=True),
        httpx.Client(base_url=url_of(listener), timeout=60) as client,
    ):
        update = {"model_path": str(weights), "weight_version": "3", "lineage": 2}
        client.post("/update_weights_from_disk", json=update).raise_for_status()
        yield client


def generate(http: httpx.Client, **body: Any) -> Any:
    reply = http.post("/generate", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-rljob-incarnation"] == INCARNATION
    return reply.json()


def test_one_prompt_answers_one_object(http: httpx.Client) -> None:
    sampling = {"max_new_tokens": 4, "temperature": 1.0, "sampling_seed": 5, "ignore_eos": True}
    found = generate(http, input_ids=[1, 2, 3], sampling_params=sampling, return_logprob=True, rid="mine")
    meta = found["meta_info"]
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["weight_version"]) == (3, 4, "3")
    assert meta["weight_versions"] == [{"lineage": 2, "version": 3, "start": 0, "end": 4}]
    assert [token for _, token, _ in meta["output_token_logprobs"]] == found["output_ids"]
    assert all(value < 0 and text is None for value, _, text in meta["output_token_logprobs"])


def test_several_prompts_and_samples_answer_a_flat_list(http: httpx.Client) -> None:
    common = {"max_new_tokens": 4, "ignore_eos": True}
    sampling = [{"n": 2, "sampling_seed": 5, **common}, {"n": 3, "sampling_seed": 9, **common}]
    found = generate(http, input_ids=[[1, 2, 3], [4]], sampling_params=sampling, rid=["a", "b"])
    assert [one["meta_info"]["id"] for one in found] == ["a", "a", "b", "b", "b"]
    assert "output_token_logprobs" not in found[0]["meta_info"]
    alone = generate(http, input_ids=[4], sampling_params={"sampling_seed": 11, **common})
    assert alone["output_ids"] == found[4]["output_ids"]


def test_one_prompt_with_several_samples_answers_a_list(http: httpx.Client) -> None:
    assert len(generate(http, input_ids=[1], sampling_params={"n": 3, "max_new_tokens": 2})) == 3


def test_compact_states_the_same(http: httpx.Client) -> None:
    body = {"input_ids": [[1, 2], [3]], "sampling_params": {"n": 4, "sampling_seed": 1, "max_new_tokens": 9}}
    plain = generate(http, **body, return_logprob=True)
    compact = generate(http, **body, compact=True)
    assert compact["output_ids"] == [token for one in plain for token in one["output_ids"]]
    triples = [triple for one in plain for triple in one["meta_info"]["output_token_logprobs"]]
    assert compact["log_probs"] == [value for value, _, _ in triples]
    assert compact["lengths"] == [len(one["output_ids"]) for one in plain]
    text = [compact["finish_words"][reason] for reason in compact["finish_reasons"]]
    assert text == [one["meta_info"]["finish_reason"]["type"] for one in plain]
    assert compact["weight"] == {"lineage": 2, "version": 3}


def test_text_goes_in_and_out(http: httpx.Client) -> None:
    found = generate(http, text="12=", sampling_params={"temperature": 0, "max_new_tokens": 5})
    again = generate(http, input_ids=[1, 2, 10], sampling_params={"temperature": 0, "max_new_tokens": 5})
    assert found["output_ids"] == again["output_ids"]
    characters = "0123456789=+"
    assert found["text"] == "".join(characters[token] for token in found["output_ids"] if token < len(characters))


def test_stops_at_stop_tokens_and_at_the_end_of_sequence(http: httpx.Client) -> None:
    stops = list(range(6))
    sampling = {"n": 32, "max_new_tokens": 64, "stop_token_ids": stops, "sampling_seed": 3}
    found = generate(http, input_ids=[7], sampling_params=sampling)
    reasons = [one["meta_info"]["finish_reason"] for one in found]
    assert {reason["type"] for reason in reasons} == {"stop"}
    assert all(reason["matched"] == one["output_ids"][-1] for reason, one in zip(reasons, found, strict=True))
    end_of_sequence = 12
    assert end_of_sequence in {reason["matched"] for reason in reasons}
    onward = generate(http, input_ids=[7], sampling_params=sampling | {"stop_token_ids": [], "ignore_eos": True})
    assert {one["meta_info"]["finish_reason"]["type"] for one in onward} == {"length"}


REFUSED = [
    pytest.param(b"{", "The body is not JSON", id="not JSON"),
    pytest.param({}, "text, input_ids: give exactly one of them", id="no prompt"),
    pytest.param({"text": "1", "input_ids": [1]}, "text, input_ids: give exactly one of them", id="two prompts"),
    pytest.param({"input_ids": []}, "the prompt is empty", id="an empty prompt"),
    pytest.param({"input_ids": [[1], []]}, "input_ids[1]: the prompt is empty", id="an empty prompt in a list"),
    pytest.param({"input_ids": [99]}, "token 99 is not in the vocabulary (0 to 13)", id="an unknown token"),
    pytest.param({"input_ids": "abc"}, "input_ids", id="text as token ids"),
    pytest.param(
        {"text": "x"}, "the character 'x' of the prompt 'x' is not in the alphabet", id="an unknown character"
    ),
    pytest.param(
        {"input_ids": [[1], [2]], "sampling_params": [{"n": 1}]},
        "sampling_params: 1 are given for 2 prompts",
        id="too few parameters",
    ),
    pytest.param({"input_ids": [[1], [2]], "rid": "a"}, "rid: one rid for several prompts", id="one rid for two"),
    pytest.param(
        {"input_ids": [1], "sampling_params": {"temperature": -1}}, "sampling_params", id="a negative temperature"
    ),
    pytest.param({"input_ids": [1], "sampling_params": {"n": 0}}, "sampling_params", id="no samples"),
    pytest.param(
        {"input_ids": [1], "sampling_params": {"frequency_penalty": 0.1}},
        "sampling_params.frequency_penalty: 0.1 is not supported by the torch engine. Leave the field out.",
        id="a parameter that is not honoured",
    ),
    pytest.param({"input_ids": [1], "stream": True}, "stream: True is not supported", id="streaming"),
    pytest.param(
        {"input_ids": [1], "sampling_params": {"max_new_tokens": 2000}},
        "are 2001, but the model has 1024 positions",
        id="longer than the model",
    ),
]


@pytest.mark.parametrize(("body", "sentence"), REFUSED)
def test_malformed_requests_get_a_sentence(http: httpx.Client, body: dict[str, Any] | bytes, sentence: str) -> None:
    reply = http.post("/generate", content=body) if isinstance(body, bytes) else http.post("/generate", json=body)
    assert reply.status_code == 400
    assert sentence in reply.json()["error"]["message"]
    assert reply.headers["x-rljob-incarnation"] == INCARNATION


def test_neutral_values_of_fields_that_are_not_honoured_are_taken(http: httpx.Client) -> None:
    neutral: dict[str, Any] = {"max_new_tokens": 1, "min_p": None, "stop": [], "frequency_penalty": 0}
    generate(http, input_ids=[1], stream=False, sampling_params=neutral)


def test_the_texts_that_ended_samples_are_named_and_left_out_of_their_texts(http: httpx.Client) -> None:
    sampling = {"n": 16, "max_new_tokens": 64, "stop": ["1", "23"], "ignore_eos": True, "sampling_seed": 3}
    found = generate(http, input_ids=[7], sampling_params=sampling)
    assert "1" in {one["meta_info"]["finish_reason"].get("matched") for one in found}
    for one in found:
        assert "1" not in one["text"]
        assert (2, 3) not in itertools.pairwise(one["output_ids"][:-1])
        if one["meta_info"]["finish_reason"].get("matched") == "1":
            assert one["output_ids"].index(1) == len(one["output_ids"]) - 1


@pytest.mark.parametrize("stop", ["", [""], [1]], ids=["empty", "an empty one", "a number"])
def test_a_stop_that_is_no_text_is_refused(http: httpx.Client, stop: object) -> None:
    reply = http.post("/generate", json={"input_ids": [1], "sampling_params": {"stop": stop}})
    assert (reply.status_code, "sampling_params" in reply.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        pytest.param("/abort_request", {}, "rid, abort_all: give exactly one", id="abort of nothing"),
        pytest.param("/pause_generation", {"mode": "sleep"}, "mode: sleep is refused", id="an unknown pause"),
        pytest.param("/update_weights_from_tensor", {}, "would need pickle", id="pickled weights"),
        pytest.param(
            "/update_weights_from_disk",
            {"model_path": "/x", "weight_version": "new"},
            "weight_version: 'new' with lineage None names no weight",
            id="a weight without a name",
        ),
        pytest.param("/update_weights_from_disk", {"weight_version": "1"}, "model_path", id="a weight without a path"),
    ],
)
def test_malformed_control_calls_get_a_sentence(http: httpx.Client, path: str, body: object, sentence: str) -> None:
    reply = http.post(path, json=body)
    assert reply.status_code == 400
    assert sentence in reply.json()["message"]


def test_the_server_reports_what_it_is(http: httpx.Client) -> None:
    assert http.get("/health", timeout=60).status_code == 200
    assert http.get("/health_generate", timeout=60).status_code == 200
    info = http.get("/get_model_info").json()
    assert (info["weight_version"], info["lineage"], info["incarnation"]) == ("3", 2, INCARNATION)
    assert http.get("/model_info").json() == info
    assert http.get("/get_weight_version").json() == {"weight_version": "3"}
    assert http.get("/get_server_info").json()["context_length"] == 1024
    assert http.get("/get_load").json()[0]["num_reqs"] == 0


def test_health_generate_is_503_before_weights_come() -> None:
    with open_listener() as listener, engine_process(listener, tiny_model()):
        assert httpx.get(f"{url_of(listener)}/health", timeout=60).status_code == 200
        assert httpx.get(f"{url_of(listener)}/health_generate", timeout=60).status_code == 503


class Background:
    """A generation that runs in a thread until it is ended from outside."""

    def __init__(self, http: httpx.Client, rid: str) -> None:
        """Returns once the samples run."""
        self._reply: list[httpx.Response] = []
        sampling = {"max_new_tokens": 1000, "ignore_eos": True, "n": 16}
        body = {"input_ids": [1], "rid": rid, "sampling_params": sampling}
        self._thread = threading.Thread(target=lambda: self._reply.append(http.post("/generate", json=body)))
        self._thread.start()
        deadline = time.monotonic() + 240
        while http.get("/get_load").json()[0]["num_reqs"] == 0:
            assert time.monotonic() < deadline, "waited for the generation to run"

    def samples(self) -> list[dict[str, Any]]:
        """Waits for the reply."""
        self._thread.join()
        found: list[dict[str, Any]] = self._reply[0].json()
        return found


def finish_types(samples: list[dict[str, Any]]) -> set[str]:
    return {one["meta_info"]["finish_reason"]["type"] for one in samples}


def test_abort_by_rid(http: httpx.Client) -> None:
    running = Background(http, "victim")
    assert http.post("/abort_request", json={"rid": "nobody"}).status_code == 200
    assert http.post("/abort_request", json={"rid": "victim"}).status_code == 200
    samples = running.samples()
    assert finish_types(samples) == {"abort"}
    assert 0 < len(samples[0]["output_ids"]) < 1000


def test_pause_with_abort_ends_what_runs_and_holds_what_comes(http: httpx.Client) -> None:
    running = Background(http, "early")
    http.post("/pause_generation", json={"mode": "abort"}).raise_for_status()
    assert finish_types(running.samples()) == {"abort"}
    late: list[Any] = []
    body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}
    thread = threading.Thread(target=lambda: late.append(generate(http, **body)))
    thread.start()
    while http.get("/get_server_info").json()["num_waiting_reqs"] == 0:
        assert not late, "a paused engine generated"
    http.post("/continue_generation", json={}).raise_for_status()
    thread.join()
    assert late[0]["meta_info"]["completion_tokens"] == 1


@pytest.mark.parametrize(("mode", "status"), [("in_place", 400), ("retract", 200)])
def test_flush_cache_is_refused_while_samples_need_it(http: httpx.Client, mode: str, status: int) -> None:
    running = Background(http, mode)
    http.post("/pause_generation", json={"mode": mode}).raise_for_status()
    assert http.post("/flush_cache").status_code == status
    http.post("/continue_generation", json={}).raise_for_status()
    assert finish_types(running.samples()) == {"length"}
