"""Rewards from real servers over HTTP: that fail for a tenth of the prompts, that are slow, that refuse."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rljob_api.spec.data import DataSpec
from rljob_api.spec.rollout import RewardSpec
from rljob_workers.rewards import Answer, RewardFailed, RewardMissing, RewardRefused, Score, build_reward
from tests.unit.rewards.test_builtin import NoSource

Reply = tuple[int, Any]
HANGS_UP = 0
"""In the place of a status: the connection ends without an answer."""


class Served:
    """What a server has seen."""

    def __init__(self) -> None:
        self.url = ""
        self.calls = 0
        self.connections = 0
        self.open = 0
        self.failed = 0
        self.most = 0
        self.headers: dict[str, str] = {}
        self.now = 0
        self.lock = threading.Lock()


@contextmanager
def serving(answer: Callable[[str, Any, int], Reply]) -> Iterator[Served]:
    """`answer` gets path, body and the number of the call."""
    seen = Served()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            with seen.lock:
                seen.connections += 1
                seen.open += 1

        def finish(self) -> None:
            super().finish()
            with seen.lock:
                seen.open -= 1

        def do_POST(self) -> None:
            with seen.lock:
                seen.calls += 1
                number = seen.calls
                seen.now += 1
                seen.most = max(seen.most, seen.now)
            seen.headers = dict(self.headers)
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, reply = answer(self.path, body, number)
            with seen.lock:
                seen.now -= 1
            if status == HANGS_UP:
                self.close_connection = True
                return
            with seen.lock:
                seen.failed += status != 200
            text = reply.encode() if isinstance(reply, str) else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    seen.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()


def built(kind: str, **fields: Any) -> Any:
    spec = RewardSpec.model_validate({kind: {"backoffSeconds": 0.01, **fields}})
    return build_reward(spec, DataSpec(prompts="p.jsonl", label_key=None), NoSource())


def group(*responses: str, number: int = 0) -> list[Answer]:
    return [Answer("p", text, "12", number, place, row={"level": 3}) for place, text in enumerate(responses)]


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def of_lengths(path: str, body: Any, number: int) -> Reply:
    return 200, {"scores": [len(each["response"]) for each in body["answers"]]}


def test_a_server_that_fails_for_a_tenth_of_its_prompts_costs_retries_and_no_scores() -> None:
    tries: Counter[int] = Counter()

    def flaky(path: str, body: Any, number: int) -> Reply:
        length = len(body["answers"][0]["response"])
        tries[length] += 1
        # Not by the number of the call: a call that is repeated after nine others would always fail.
        return (503, "busy") if length % 10 == 0 and tries[length] <= 3 else of_lengths(path, body, number)

    with serving(flaky) as server:
        reward = built("remote", url=server.url)
        groups = [group("a" * n, "b", number=n) for n in range(100)]
        assert reward.score_groups(groups) == [[float(n), 1.0] for n in range(100)]
        reward.close()
    assert server.failed == reward.num_resent == 30
    assert server.calls == 130


def test_no_more_requests_run_at_the_same_time_than_the_job_allows() -> None:
    release = threading.Event()

    def held(path: str, body: Any, number: int) -> Reply:
        if number == 3:
            release.set()
        release.wait(30)
        return of_lengths(path, body, number)

    with serving(held) as server:
        reward = built("remote", url=server.url, concurrency=3)
        assert len(reward.score_groups([group("a", number=n) for n in range(20)])) == 20
        reward.close()
    assert server.most == 3


def test_a_server_gets_no_more_connections_than_requests_at_the_same_time_and_none_is_left() -> None:
    with serving(of_lengths) as server:
        reward = built("remote", url=server.url, concurrency=4)
        for turn in range(5):
            assert len(reward.score_groups([group("a", number=10 * turn + n) for n in range(10)])) == 10
        assert server.calls == 50
        assert 1 <= server.connections <= 4
        assert server.open == server.connections
        reward.close()
        wait_until(lambda: server.open == 0)


def test_a_connection_that_the_server_has_closed_while_it_was_idle_costs_no_try() -> None:
    """The server ends a connection at its second request: as if it had done so just when that was sent."""
    served: set[int] = set()

    def once_each(path: str, body: Any, number: int) -> Reply:
        # A connection has a thread of its own here.
        if threading.get_ident() in served:
            served.discard(threading.get_ident())
            return HANGS_UP, None
        served.add(threading.get_ident())
        return of_lengths(path, body, number)

    with serving(once_each) as server:
        reward = built("remote", url=server.url, concurrency=3, retries=0)
        for turn in range(4):
            groups = [group("ab", number=3 * turn + n) for n in range(3)]
            assert reward.score_groups(groups) == [[2.0]] * 3, turn
        reward.close()
    assert server.calls > 12
    assert server.connections >= 12


def test_a_server_that_ends_new_connections_without_an_answer_costs_tries() -> None:
    with serving(lambda path, body, number: (HANGS_UP, None)) as server:
        reward = built("remote", url=server.url, retries=2)
        ((failed,),) = reward.score_groups([group("a")])
        reward.close()
    assert isinstance(failed, RewardFailed)
    assert "failed 3 times, the last time with ServerDisconnectedError" in str(failed)
    assert (server.calls, server.connections) == (3, 3)


def test_scores_may_have_metrics_and_be_missing() -> None:
    scores = [1.0, {"reward": 0.5, "metrics": {"sure": 0.25}}, None]
    with serving(lambda path, body, number: (200, {"scores": scores})) as server:
        reward = built("remote", url=server.url)
        ((one, two, three),) = reward.score_groups([group("a", "b", "c")])
        reward.close()
    assert (one, two) == (1.0, Score(0.5, {"sure": 0.25}))
    assert isinstance(three, RewardMissing)


def test_a_server_that_never_works_fails_by_its_name() -> None:
    with serving(lambda path, body, number: (500, "out of memory")) as server:
        reward = built("remote", url=server.url, retries=2)
        ((failed,),) = reward.score_groups([group("a")])
        reward.close()
    assert isinstance(failed, RewardFailed)
    assert str(failed) == (
        f"rollout.reward.remote.url: {server.url} raised ServerFailed on the prompt 'p' (group 0): {server.url} failed"
        " 3 times, the last time with status 500: out of memory"
    )
    assert server.calls == 3


def test_a_server_that_hangs_is_given_up_after_its_time() -> None:
    over = threading.Event()

    def hangs(path: str, body: Any, number: int) -> Reply:
        over.wait(60)
        return 200, {}

    with serving(hangs) as server:
        reward = built("remote", url=server.url, retries=0, timeoutSeconds=1)
        ((failed,),) = reward.score_groups([group("a")])
        over.set()
        reward.close()
    assert isinstance(failed, RewardFailed)
    assert str(failed).endswith("failed 1 times, the last time with no answer within 1 s")


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        pytest.param((401, "who are you"), "answers with status 401: who are you", id="refused"),
        pytest.param((200, "<html>"), "answers with no JSON: <html>", id="no JSON"),
        pytest.param((200, {"rewards": [1]}), "which has no list of scores", id="no scores"),
        pytest.param((200, {"scores": [1]}), "returned 1 values for the 2 answers", id="too few"),
        pytest.param((200, {"scores": ["a", 1]}), "returned 'a' for answer 0", id="a text"),
    ],
)
def test_what_another_try_would_not_mend_is_refused(reply: Reply, sentence: str) -> None:
    with serving(lambda path, body, number: reply) as server:
        reward = built("remote", url=server.url)
        with pytest.raises(RewardRefused, match=rf"^rollout\.reward\.remote\.url: {server.url} .*{sentence}"):
            reward.score_groups([group("a", "b")])
        reward.close()
    assert server.calls == 1


def test_a_token_is_sent_and_one_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^rollout\.reward\.remote\.tokenEnv: NO_TOKEN is not set where rollouts run"):
        built("remote", url="http://nowhere", tokenEnv="NO_TOKEN")
    monkeypatch.setenv("REWARD_TOKEN", "secret")
    with serving(of_lengths) as server:
        reward = built("remote", url=server.url, tokenEnv="REWARD_TOKEN")
        assert reward.score_groups([group("ab")]) == [[2.0]]
        reward.close()
    assert server.headers["Authorization"] == "Bearer secret"
