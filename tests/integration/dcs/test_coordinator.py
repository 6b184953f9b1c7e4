"""The coordinator's answers: who lives, what is ordered, what was reported; whatever happens to its process."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx
import pytest

from rljob_api.names import Epoch, Role
from rljob_api.wire.epochs import EpochRequest, PodPhase
from rljob_api.wire.failures import FailureKind
from rljob_api.wire.inputs import FileContent, InputAnswer, InputNote
from rljob_api.wire.observation import CoordinatorEvent, EventKind, EventPage, ServerState
from rljob_api.wire.ranks import NoticeKind
from rljob_workers.dcs.errors import IncarnationOver
from rljob_workers.dcs.membership.counters import PASSED_OVER
from tests.integration.dcs.world import PATIENCE_SECONDS, World, eventually, make_step_report


def test_it_is_ready_when_the_control_redis_is_open(world: World) -> None:
    url = world.endpoints.coordinator
    eventually(lambda: httpx.get(f"{url}/readyz", timeout=60).status_code == 200, "readiness")
    assert httpx.get(f"{url}/healthz", timeout=60).text == "ok"
    assert world.status().server is ServerState.OPEN


@pytest.mark.parametrize("token", [None, "", "wrong"])
def test_without_the_token_nothing_is_reported(world: World, token: str | None) -> None:
    headers = {} if token is None else {"X-RLJob-Token": token}
    answer = httpx.get(f"{world.endpoints.coordinator}/v1/status", headers=headers, timeout=60)
    assert answer.status_code == 401
    assert "X-RLJob-Token is missing or wrong" in answer.text


def test_the_same_decision_opens_an_epoch_once(world: World) -> None:
    first = world.raise_epoch(1, "a")
    assert world.raise_epoch(1, "a") == first
    assert [event.epoch for event in world.reported(EventKind.EPOCH_OPENED)] == [1]
    with pytest.raises(IncarnationOver, match=r"epoch: 1 \(decision b\) is not above 1 \(decision a\)"):
        world.raise_epoch(1, "b")


def test_an_epoch_that_reached_only_the_queue_is_opened_by_the_repeated_decision(
    world: World, tmp_path: object
) -> None:
    folder = str(tmp_path)
    world.kill()
    world.start(RLJOB_FAILPOINTS="coordinator.epoch_raised=1", RLJOB_FAILPOINTS_DIR=folder)
    raising = threading.Thread(target=lambda: world.raise_epoch(1, "a"))
    raising.start()
    assert world.process is not None
    world.process.wait(PATIENCE_SECONDS)
    world.start()
    raising.join(PATIENCE_SECONDS)
    assert not raising.is_alive()
    assert world.status().epoch == 1
    assert len(world.reported(EventKind.EPOCH_OPENED)) == 1


def test_an_epoch_with_another_job_is_refused_with_a_sentence_until_the_coordinator_is_made_for_it(
    world: World,
) -> None:
    world.begin()
    url = urlsplit(world.endpoints.coordinator)
    headers = {"X-RLJob-Token": world.endpoints.token, "Content-Type": "application/json"}
    poll = HTTPConnection(url.netloc, timeout=60)
    poll.request("GET", "/v1/events?after=99&wait=20", headers=headers)
    other = world.job.model_copy(update={"spec": world.job.spec.model_copy(update={"suspend": True})})
    request = EpochRequest(epoch=Epoch(2), decision_id="d2", reason="a test", job=other)
    refused = httpx.post(f"{url.geturl()}/v1/epoch", content=request.model_dump_json(), headers=headers, timeout=60)

    assert (refused.status_code, refused.json()["reason"]) == (503, "NotOpen")
    assert refused.json()["message"] == "The coordinator begins anew with the job of epoch 2. Ask again."
    assert poll.getresponse().status == 503
    poll.close()
    world.call("POST", "/v1/epoch", request)
    assert world.status().epoch == 2
    assert "Traceback" not in world.log.read_text()


def test_ranks_of_an_older_epoch_are_fenced(world: World) -> None:
    world.begin()
    rank = world.rank(Role.ACTOR)
    world.raise_epoch(2)
    with pytest.raises(IncarnationOver, match="is of epoch 1; epoch 2 is open"):
        rank.ready()
    with pytest.raises(IncarnationOver, match="is of epoch 1; epoch 2 is open"):
        world.rank(Role.ACTOR)


def test_a_later_incarnation_ends_the_earlier_one_of_the_same_rank(world: World) -> None:
    world.begin()
    first = world.rank(Role.ADVANTAGES)
    second = world.rank(Role.ADVANTAGES)
    second.ready()
    with pytest.raises(IncarnationOver, match="is over"):
        first.ready()


def test_an_in_place_order_ends_the_incarnations_of_the_generation_before(world: World) -> None:
    world.begin()
    rank = world.rank(Role.ADVANTAGES)
    world.order(1, {"advantages-0": 1})
    with pytest.raises(IncarnationOver, match="is over"):
        rank.ready()
    with pytest.raises(IncarnationOver, match="is of generation 0; 1 is ordered"):
        world.rank(Role.ADVANTAGES)
    world.rank(Role.ADVANTAGES, generation=1).ready()


def test_a_fenced_rank_learns_it_from_a_pulse(world: World) -> None:
    world.begin()
    rank = world.rank(Role.ACTOR)
    world.raise_epoch(2)

    def pulsed_out() -> bool:
        try:
            rank.pulse()
        except IncarnationOver:
            return True
        return False

    eventually(pulsed_out, "IncarnationOver")


def test_a_role_is_reported_ready_once_when_its_last_rank_is(world: World) -> None:
    world.begin()
    world.rank(Role.ROLLOUT, 0).ready()
    assert world.reported(EventKind.ROLE_READY) == []
    second = world.rank(Role.ROLLOUT, 1)
    second.ready()
    second.ready()
    world.restart()
    second.ready()
    (event,) = world.reported(EventKind.ROLE_READY)
    assert event.pod is not None
    assert event.pod.role is Role.ROLLOUT


def test_a_role_is_reported_ready_again_after_a_restart_in_place(world: World) -> None:
    world.begin()
    world.rank(Role.ADVANTAGES).ready()
    world.order(1, {"advantages-0": 1})
    world.rank(Role.ADVANTAGES, generation=1).ready()
    assert len(world.reported(EventKind.ROLE_READY)) == 2


def test_a_beat_carries_the_drain(world: World) -> None:
    world.begin()
    rank = world.rank(Role.ACTOR)
    world.order(1, phase=PodPhase.DRAIN)

    def drains() -> bool:
        rank.pulse()
        return rank.draining

    eventually(drains, "draining")


def test_what_a_rank_is_busy_with_is_seen_at_once(world: World) -> None:
    world.begin()
    rank = world.rank(Role.ACTOR)
    with rank.busy("loading checkpoint 12", 120):
        (seen,) = world.status().pods[0].ranks
        assert seen.busy is not None
        assert seen.busy.what == "loading checkpoint 12"
        assert seen.busy_left_seconds is not None
        assert 0 < seen.busy_left_seconds <= 120
    rank.pulse(waiting="rows of train_0")

    def waits() -> bool:
        rank.pulse(waiting="rows of train_0")
        (seen,) = world.status().pods[0].ranks
        return seen.busy is None and seen.waiting == "rows of train_0"

    eventually(waits, "the end of busy")


def test_beats_outlive_a_kill_of_the_coordinator(world: World) -> None:
    world.begin()
    rank = world.rank(Role.ACTOR)
    rank.ready()
    for _ in range(3):
        world.kill()
        rank.pulse()
        world.start()
        rank.pulse()
    assert world.status().pods[0].ranks[0].state == "Ready"

    def received() -> bool:
        rank.pulse(waiting="a word")
        return world.status().pods[0].ranks[0].waiting == "a word"

    eventually(received, "a beat after the restart")


def test_a_failure_stays_until_it_is_acknowledged_and_is_reported_once(world: World) -> None:
    world.begin()
    rank = world.rank(Role.ROLLOUT)
    failure = world.failure(rank)
    world.call("POST", "/v1/failures", failure)
    world.call("POST", "/v1/failures", failure)
    world.restart()
    assert world.status().failures == [failure]
    assert len(world.reported(EventKind.FAILURE_REPORTED)) == 1
    world.acknowledge(failure.id)
    world.call("POST", "/v1/failures", failure)
    assert world.status().failures == []


def test_a_dead_rank_is_over_once_its_failure_is_reported(world: World) -> None:
    world.begin()
    rank = world.rank(Role.ROLLOUT)
    world.call("POST", "/v1/failures", world.failure(rank))
    with pytest.raises(IncarnationOver):
        rank.ready()


def test_an_engine_that_exits_does_not_end_its_rank(world: World) -> None:
    world.begin()
    rank = world.rank(Role.ROLLOUT)
    world.call("POST", "/v1/failures", world.failure(rank, FailureKind.ENGINE_EXITED))
    rank.ready()


def test_a_reported_failure_is_one_whatever_its_message_is_repeated(world: World) -> None:
    world.begin()
    rank = world.rank(Role.ROLLOUT)
    rank.report_failure("group 3 of train_5 has no draw left")
    rank.report_failure("group 3 of train_5 has no draw left")
    (failure,) = world.status().failures
    assert failure.kind is FailureKind.REPORTED
    rank.ready()


def test_a_step_is_reported_once_and_shown(world: World) -> None:
    world.begin()
    rank = world.rank(Role.ACTOR)
    report = make_step_report(rank, 0)
    rank.report_step(report)
    rank.report_step(report)
    world.restart()
    status = world.status()
    report = report.model_copy(update={"metrics": {PASSED_OVER: 0.0}})  # which the coordinator counts over all ranks
    assert (status.step, status.last_step) == (0, report)
    (event,) = world.reported(EventKind.STEP_TRAINED)
    assert event.step == report


def test_event_ids_grow_by_one_over_a_restart_and_a_waiting_reader_is_woken(world: World) -> None:
    world.begin()
    last = world.status().last_event
    with _reading(world, f"/v1/events?after={last}&wait=20") as received:
        world.register(Role.ACTOR)
    assert [event.id for event in received] == [last + 1]
    world.restart()
    world.register(Role.ACTOR_FWD)
    assert [event.id for event in world.events()] == list(range(1, last + 3))


def test_metrics_carry_known_counters_only(world: World) -> None:
    world.begin()
    rank = world.rank(Role.ROLLOUT, 1)
    rank.counters["groups_put"] += 16
    rank.counters["whatever"] += 1
    rank.ready()
    text = world.call("GET", "/metrics").decode()
    assert 'rljob_rank_groups_put_total{job="test",role="rollout",replica="1",rank="0"} 16.0' in text
    assert "whatever" not in text
    assert 'rljob_epoch{job="test"} 1.0' in text
    assert re.search(r'^rljob_build_info\{job="test",component="coordinator",version="\d[^"]*"\} 1.0$', text, re.M)
    assert re.search(r"^process_resident_memory_bytes \d", text, re.M)
    # What has not happened is reported, too: else its first time would be no change.
    assert 'rljob_rank_groups_lost_total{job="test",role="rollout",replica="1",rank="0"} 0.0' in text
    assert "rljob_rank_skipped_steps_total{" not in text


@contextmanager
def _reading(world: World, path: str) -> Iterator[list[CoordinatorEvent]]:
    """A reader that waits for events meanwhile; what it received is in the list afterwards."""
    received: list[CoordinatorEvent] = []
    reader = threading.Thread(target=lambda: received.extend(EventPage.model_validate_json(_get(world, path)).events))
    reader.start()
    yield received
    reader.join(240)


def _get(world: World, path: str) -> bytes:
    headers = {"X-RLJob-Token": world.endpoints.token}
    return httpx.get(world.endpoints.coordinator + path, headers=headers, timeout=60).content


def test_a_reader_learns_of_what_it_called_quiet_with_the_next_event_that_is_not(world: World) -> None:
    world.begin()
    session = world.rank(Role.ACTOR)
    last = world.status().last_event
    with _reading(world, f"/v1/events?after={last}&wait=20&quiet=PodChanged&quiet=StepTrained") as received:
        world.register(Role.ACTOR_FWD)
        world.call("POST", "/v1/failures", world.failure(session))
    assert [event.kind for event in received] == ["PodChanged", "FailureReported"]


def test_a_coordinator_that_another_one_has_replaced_ends(world: World) -> None:
    world.begin()
    earlier = world.process
    assert earlier is not None
    world.start()
    eventually(lambda: earlier.poll() is not None, "the end of the earlier coordinator")
    assert world.status().epoch == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        pytest.param("POST", "/v1/ranks/beat", b"{", "Invalid JSON", id="a beat that is cut off"),
        pytest.param(
            "POST", "/v1/ranks/beat", b"{}", "life: Field required; state: Field required", id="an empty beat"
        ),
        pytest.param("POST", "/v1/launchers/0/poll", b'{"carried": null}', "ranks: Field required", id="a poll"),
        pytest.param("GET", "/v1/weights/Policy?wait=31", b"", "wait: Input should be less than", id="too long a wait"),
        pytest.param(
            "GET", "/v1/weights/Policy?version=x", b"", "version: Input should be a valid integer", id="words"
        ),
        pytest.param("GET", "/v1/weights/Other", b"", "stream: Input should be 'Policy' or 'Reference'", id="a stream"),
    ],
)
def test_what_is_not_understood_is_named(world: World, method: str, path: str, body: bytes, message: str) -> None:
    headers = {"X-RLJob-Token": world.endpoints.token}
    answer = httpx.request(method, world.endpoints.coordinator + path, content=body, headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["reason"]) == (400, "BadRequest")
    assert message in answer.json()["message"]


def test_of_ranks_that_beat_at_once_each_gets_its_own_answer(world: World) -> None:
    world.begin()
    ranks = [world.rank(Role.ROLLOUT, 0), world.rank(Role.ROLLOUT, 1), world.rank(Role.ACTOR)]
    world.call("POST", "/v1/failures", world.failure(ranks[1]))
    message: dict[int, str] = {}

    def beat(which: int) -> None:
        try:
            ranks[which].ready()
            message[which] = "fine"
        except IncarnationOver:
            message[which] = "over"

    threads = [threading.Thread(target=beat, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert message == {0: "fine", 1: "over", 2: "fine"}


def test_what_several_ranks_find_of_one_subject_is_one_event_in_an_epoch(world: World) -> None:
    for epoch in (1, 2):
        world.begin() if epoch == 1 else world.raise_epoch(epoch)
        for replica in range(2):
            session = world.rank(Role.ROLLOUT, replica, epoch)
            for subject in ("custom", "judge", "custom"):
                session.notify(NoticeKind.REWARD_RETRIED, f"{subject} failed.", subject=subject)
        found = [(event.epoch, event.message) for event in world.reported(EventKind.REWARD_RETRIED)]
        of_one = ["rollout-0.0: custom failed.", "rollout-0.0: judge failed."]
        assert found == [(past, text) for past in range(1, epoch + 1) for text in of_one]


def test_a_notice_becomes_an_event_of_its_rank(world: World) -> None:
    world.begin()
    session = world.rank(Role.ROLLOUT)
    session.notify(NoticeKind.WRONG_WEIGHTS, "The engine has other weights.")
    session.notify(NoticeKind.WRONG_WEIGHTS, "The engine has other weights.")  # as after a lost answer
    (event,) = world.reported(EventKind.WRONG_WEIGHTS)
    assert (event.message, event.pod) == ("rollout-0.0: The engine has other weights.", session.incarnation.key.pod)
    for length in ("1,000", "2,000"):
        session.notify(NoticeKind.TOOL_TEXT_CUT, f"A text of {length} characters.")
    assert [one.message for one in world.reported(EventKind.TOOL_TEXT_CUT)] == [
        "rollout-0.0: A text of 1,000 characters."
    ]
    world.raise_epoch(2)
    with pytest.raises(IncarnationOver):
        session.notify(NoticeKind.STEP_SKIPPED, "Too late.")
    assert world.reported(EventKind.STEP_SKIPPED) == []


def _note(digest: str, *, may_change: bool = True, is_read: bool = True) -> InputNote:
    content = FileContent(num_bytes=7, digest=digest)
    return InputNote(
        field="spec.data.prompts",
        path="/data/rows.jsonl",
        stamp=f"stamp of {digest}",
        files={"rows.jsonl": content} if is_read else None,
        may_change=may_change,
    )


def test_an_input_with_other_content_is_an_event_also_to_a_later_coordinator(world: World) -> None:
    world.begin()
    session = world.rank(Role.ROLLOUT)
    assert session.report_inputs([_note("a", is_read=False)]).wanted == ["spec.data.prompts"]
    assert session.report_inputs([_note("a")]) == InputAnswer()
    world.restart()
    assert session.report_inputs([_note("a", is_read=False)]) == InputAnswer(), "nothing is read again"
    assert session.report_inputs([_note("b", is_read=False)]).wanted == ["spec.data.prompts"]
    assert world.reported(EventKind.INPUT_CHANGED) == []
    for _ in range(2):  # as after a lost answer
        assert session.report_inputs([_note("b")]) == InputAnswer()
    (event,) = world.reported(EventKind.INPUT_CHANGED)
    assert "/data/rows.jsonl is not what this run has read before (rows.jsonl: other content)" in event.message


def test_roles_that_import_different_modules_of_one_folder_have_changed_nothing(world: World) -> None:
    world.begin()
    code = _note("a").model_copy(update={"field": "spec.algorithm.loss", "path": "/code"})
    rollout, actor = world.rank(Role.ROLLOUT), world.rank(Role.ACTOR)
    for _ in range(2):
        for session, module in ((rollout, "reward.py"), (actor, "loss.py")):
            files = {module: FileContent(num_bytes=7, digest=module)}
            assert session.report_inputs([code.model_copy(update={"files": files})]) == InputAnswer()
    assert world.reported(EventKind.INPUT_CHANGED) == []


def test_an_input_that_may_not_change_is_refused_until_it_may(world: World) -> None:
    world.begin()
    session = world.rank(Role.REFERENCE)
    session.report_inputs([_note("a", may_change=False)])
    for _ in range(2):
        refusal = session.report_inputs([_note("b", may_change=False)]).refusal
        assert refusal is not None
        assert "set spec.roles.reference.changedWeights to Accept" in refusal
    assert world.reported(EventKind.INPUT_CHANGED) == []
    assert session.report_inputs([_note("b")]).refusal is None
    assert len(world.reported(EventKind.INPUT_CHANGED)) == 1
