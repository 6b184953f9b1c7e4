"""The reward `judge` against real servers: with a schema, without one, and of replies that are no score."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_workers.rewards import RewardFailed, RewardMissing, RewardRefused
from rljob_workers.rewards.scoring import FailedShare, FailurePolicy, Scoring, ScoringCounts
from tests.unit.rewards.test_servers import Reply, built, group, serving, wait_until

RUBRIC = "Question: {prompt}\nAnswer: {response}\nGrade it."


def completion(text: str | None) -> Reply:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


def asked_of(body: Any) -> str:
    content: str = body["messages"][0]["content"]
    return content


def judge(server: Any, **fields: Any) -> Any:
    return built("judge", url=f"{server.url}/v1/", model="judge-7b", rubric=RUBRIC, **fields)


def test_a_judge_is_asked_for_json_and_scores_by_the_rubric() -> None:
    seen: list[Any] = []

    def grades(path: str, body: Any, number: int) -> Reply:
        seen.append((path, body["model"], asked_of(body), body["response_format"]["json_schema"]["schema"]["required"]))
        answer = asked_of(body).split("Answer: ")[1].split("\n")[0]
        texts = {"good": '{"reason": "Fine.", "score": 8}', "odd": '{"score": 99}', "mute": None}
        return completion(texts[answer.split()[0]])

    with serving(grades) as server:
        reward = judge(server, lowest=4, highest=12)
        ((good, odd, mute),) = reward.score_groups([group("good {label}", "odd", "mute")])
        reward.close()
        url = server.url
    assert good == pytest.approx(0.5)
    assert isinstance(mute, RewardMissing)
    assert isinstance(odd, RewardMissing)
    assert str(odd) == (
        f"rollout.reward.judge.url: {url}/v1/: the judge's reply for answer 1 to the prompt 'p' has not exactly one"
        " score from 4 to 12; it ends with '{\"score\": 99}'."
    )
    assert reward.num_unread == 2
    asked = (
        "Question: p\nAnswer: good {label}\nGrade it.\n\n"
        "Reply with a JSON object: `reason`, in one or two sentences, then `score`, a number from 4 to 12."
    )
    assert ("/v1/chat/completions", "judge-7b", asked, ["reason", "score"]) in seen


def test_a_judge_that_ignores_the_schema_is_read_as_text() -> None:
    with serving(lambda path, body, number: completion("It is right.\n**Score**: **8**/10")) as server:
        reward = judge(server)
        assert reward.score_groups([group("a")]) == [[0.8]]
        reward.close()
    assert server.calls == 1


@pytest.mark.parametrize("status", [400, 404, 422, 500, 501])
def test_a_judge_that_refuses_the_schema_is_asked_for_text_from_then_on(status: int) -> None:
    endings: list[str] = []

    def without_schemas(path: str, body: Any, number: int) -> Reply:
        if "response_format" in body:
            return status, "Unknown parameter: response_format"
        endings.append(asked_of(body).split("\n\n")[1])
        return completion("Score: 5")

    with serving(without_schemas) as server:
        reward = judge(server, retries=0, concurrency=1)
        assert reward.score_groups([group("a")]) == [[0.5]]
        assert server.calls == 2
        assert reward.score_groups([group("b", number=n) for n in range(5)]) == [[0.5]] * 5
        reward.close()
    assert server.calls == 7
    assert endings == ["End with a line `Score: N`, where N is a number from 0 to 10."] * 6


def test_a_judge_that_refuses_every_request_is_refused() -> None:
    with serving(lambda path, body, number: (400, "no model judge-7b")) as server:
        reward = judge(server)
        with pytest.raises(RewardRefused, match="answers with status 400: no model judge-7b"):
            reward.score_groups([group("a")])
        reward.close()
    assert server.calls == 2


def test_a_judge_that_takes_schemas_and_fails_once_keeps_them() -> None:
    """Its status of 500 is a failure of the moment, and costs no second question."""
    failing = [False]

    def flaky(path: str, body: Any, number: int) -> Reply:
        assert "response_format" in body
        return (500, "busy") if failing[0] else completion('{"score": 5}')

    with serving(flaky) as server:
        reward = judge(server, retries=0)
        assert reward.score_groups([group("a")]) == [[0.5]]
        failing[0] = True
        ((failed,),) = reward.score_groups([group("a")])
        failing[0] = False
        assert reward.score_groups([group("a")]) == [[0.5]]
        reward.close()
    assert isinstance(failed, RewardFailed)
    assert server.calls == 3


def test_a_judge_may_be_asked_for_text_alone() -> None:
    def plain(path: str, body: Any, number: int) -> Reply:
        assert "response_format" not in body
        return completion("Score: 7")

    with serving(plain) as server:
        reward = judge(server, reply="Text")
        assert reward.score_groups([group("a")]) == [[0.7]]
        reward.close()


def test_replies_without_a_score_are_counted() -> None:
    with serving(lambda path, body, number: completion("Score: 8-9")) as server:
        counters: dict[str, float] = {}
        reward = judge(server)
        scoring = Scoring(reward, FailurePolicy(0, 0.0, None), FailedShare(10, 1.0), ScoringCounts(counters))
        scoring.score_groups([group("a", "b")])
        scoring.score_groups([group("c")])
        reward.close()
    assert (counters["judge_replies_unread"], counters["samples_unscored"]) == (3, 3)


def test_a_judge_keeps_its_connections() -> None:
    with serving(lambda path, body, number: completion("Score: 10")) as server:
        reward = judge(server, concurrency=2)
        assert reward.score_groups([group("a", "b", "c", number=n) for n in range(4)]) == [[1.0] * 3] * 4
        assert (server.calls, server.connections) == (12, 2)
        reward.close()
        wait_until(lambda: server.open == 0)
