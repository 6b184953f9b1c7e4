"""The claim that was made for a job: how it grows, and what is noted on it for later jobs of the name."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from rljob_api.spec import RLJob
from rljob_api.status import Condition, RestartStatus, RLJobStatus, TrainingStatus
from rljob_operator.build import Found, FoundClaims, Manifest, Owner, Platform, manifests
from rljob_operator.core import RetainedRun, VolumeFact
from rljob_operator.kube.api import Api
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.checkpoint_claim import RETRY_SECONDS, CheckpointClaim, as_large_as_it_is, found, retained_run
from rljob_operator.kube.errors import ApiRefused, ApiUnreachable, refusal
from rljob_operator.kube.kinds import Resource
from rljob_operator.kube.views import JobKey, view_owned
from rljob_operator.options import OperatorOptions
from tests.unit.build.jobs import changed, quickstart

Json = dict[str, Any]
UID, KEY = "u1", JobKey("team", "quickstart")
NAME = "quickstart-checkpoints"


def wanted(job: RLJob, uid: str = UID, there: Found = Found.NOTHING) -> list[Manifest]:
    return manifests(job, Owner("team", uid), RLJobStatus(), OperatorOptions(), Platform(), FoundClaims(there))


def claim_of(made: list[Manifest]) -> Manifest:
    return next(each for each in made if each["metadata"]["name"] == NAME)


class Server:
    """Has the claim; takes merge patches of it, unless it refuses their sizes."""

    def __init__(self, claim: Manifest, refuses: str | Exception = "") -> None:
        self.refuses = refuses
        self.patches: list[Json] = []
        self.raw: Json = {
            **claim,
            "status": {"capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]}},
        }
        self.raw["metadata"] = {**claim["metadata"], "uid": "c1", "resourceVersion": "1"}
        self.cache = Cache(lambda key, cause: None)
        self.put()

    def put(self) -> None:
        self.cache.put_owned(KEY, view_owned("PersistentVolumeClaim", self.raw))

    async def merge(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        assert (resource.kind, namespace, name, body["metadata"]["uid"]) == (
            "PersistentVolumeClaim",
            "team",
            NAME,
            "c1",
        )
        self.patches.append({key: value for key, value in body.items() if key != "metadata"} | _notes(body))
        if "spec" in body and self.refuses:
            message = self.refuses
            raise refusal("PATCH", 403, "Forbidden", message) if isinstance(message, str) else message
        metadata = self.raw["metadata"]
        notes = {**metadata["annotations"], **body["metadata"].get("annotations", {})}
        version = str(int(metadata["resourceVersion"]) + 1)
        self.raw = {**self.raw, **({"spec": {**self.raw["spec"], **body["spec"]}} if "spec" in body else {})}
        self.raw["metadata"] = {
            **metadata,
            "resourceVersion": version,
            "annotations": {key: value for key, value in notes.items() if value is not None},
        }
        return self.raw


def _notes(body: Json) -> Json:
    notes = body["metadata"].get("annotations")
    return {} if notes is None else {"notes": notes}


def make(server: Server, clock: Callable[[], float] = lambda: 0.0) -> CheckpointClaim:
    return CheckpointClaim(cast(Api, server), server.cache, KEY, clock)


def sized(size: str) -> RLJob:
    return changed(quickstart(), checkpoint={"volume": {"size": size}})


def test_a_claim_as_large_as_it_should_be_is_left_alone() -> None:
    server = Server(claim_of(wanted(quickstart())))
    fact = asyncio.run(make(server).grow(UID, wanted(quickstart())))
    assert fact == VolumeFact(NAME, wanted="10Gi", size="10Gi", capacity="10Gi", is_large_enough=True)
    assert asyncio.run(make(server).grow(UID, wanted(sized("1Gi")))) is not None
    assert server.patches == []


def test_a_larger_size_is_asked_for_once() -> None:
    server = Server(claim_of(wanted(quickstart())))
    claim = make(server)
    fact = asyncio.run(claim.grow(UID, wanted(sized("20Gi"))))
    assert fact == VolumeFact(NAME, wanted="20Gi", size="20Gi", capacity="10Gi", is_large_enough=False)
    assert server.patches == [{"spec": {"resources": {"requests": {"storage": "20Gi"}}}}]
    server.raw["status"] = {
        "capacity": {"storage": "10Gi"},
        "conditions": [{"type": "FileSystemResizePending", "status": "True", "message": "waiting for a mount"}],
    }
    server.put()
    fact = asyncio.run(claim.grow(UID, wanted(sized("20Gi"))))
    assert fact is not None
    assert (fact.is_large_enough, fact.platform_message) == (False, "waiting for a mount")
    server.raw["status"] = {"capacity": {"storage": "20Gi"}}
    server.put()
    fact = asyncio.run(claim.grow(UID, wanted(sized("20Gi"))))
    assert fact is not None
    assert fact.is_large_enough
    assert len(server.patches) == 1


def test_a_refusal_is_reported_and_asked_for_again_after_a_while() -> None:
    now = [0.0]
    server = Server(claim_of(wanted(quickstart())), refuses="only dynamically provisioned pvc can be resized.")
    claim = make(server, lambda: now[0])
    for _ in range(3):
        fact = asyncio.run(claim.grow(UID, wanted(sized("20Gi"))))
        assert fact is not None
        assert (fact.size, fact.refusal) == ("10Gi", "only dynamically provisioned pvc can be resized")
    assert len(server.patches) == 1
    server.refuses = ""
    now[0] = RETRY_SECONDS
    fact = asyncio.run(claim.grow(UID, wanted(sized("20Gi"))))
    assert fact is not None
    assert (fact.size, fact.refusal) == ("20Gi", "")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        pytest.param(
            refusal("PATCH", 500, "InternalError", "webhook failed."), "webhook failed", id="a failing webhook"
        ),
        pytest.param(ApiUnreachable("no answer in 15 s"), "no answer in 15 s", id="no answer"),
    ],
)
def test_a_server_that_fails_keeps_nothing_else_from_being_done(error: Exception, message: str) -> None:
    now = [0.0]
    server = Server(claim_of(wanted(quickstart())), refuses=error)
    claim = make(server, lambda: now[0])
    for _ in range(2):
        fact = asyncio.run(claim.grow(UID, wanted(sized("20Gi"))))
        assert fact is not None
        assert (fact.size, fact.refusal) == ("10Gi", message)
    assert len(server.patches) == 1
    now[0] = RETRY_SECONDS
    asyncio.run(claim.grow(UID, wanted(sized("20Gi"))))
    assert len(server.patches) == 2


def test_a_server_that_asks_for_time_gets_it() -> None:
    error = refusal("PATCH", 429, "TooManyRequests", "later", 1.0)
    server = Server(claim_of(wanted(quickstart())), refuses=error)
    with pytest.raises(ApiRefused, match="later"):
        asyncio.run(make(server).grow(UID, wanted(sized("20Gi"))))


def test_another_size_is_asked_for_at_once() -> None:
    server = Server(claim_of(wanted(quickstart())), refuses="no")
    claim = make(server)
    asyncio.run(claim.grow(UID, wanted(sized("20Gi"))))
    asyncio.run(claim.grow(UID, wanted(sized("15Gi"))))
    assert len(server.patches) == 2


def test_what_is_not_the_jobs_own_does_not_grow() -> None:
    mine = changed(quickstart(), checkpoint={"volume": {"claimName": "mine"}})
    server = Server(claim_of(wanted(quickstart(), uid="u0")))
    assert asyncio.run(make(server).grow(UID, wanted(sized("20Gi")))) is None
    assert asyncio.run(make(server).grow(UID, wanted(mine))) is None
    assert server.patches == []


def status(*, ended: bool, recorded: int | None = 7, epoch: int = 1) -> RLJobStatus:
    kind = "Succeeded" if ended else "Ready"
    condition = Condition(type=kind, status="True", reason="", message="", last_transition_time="")
    training = TrainingStatus(checkpoint=recorded, checkpoint_folder=None if recorded is None else f"{recorded}-e1-a")
    return RLJobStatus(
        conditions=[condition], training=training, restart=RestartStatus.model_validate({"epoch": epoch})
    )


def test_how_far_a_job_came_is_noted_when_it_rests_and_taken_back_when_it_goes_on() -> None:
    server = Server(claim_of(wanted(quickstart())))
    claim = make(server)
    for each in (status(ended=False), status(ended=True), status(ended=True), status(ended=False)):
        asyncio.run(claim.note_record(UID, each))
    assert server.patches == [{"notes": {"rljob.dev/recorded": "7 7-e1-a"}}, {"notes": {"rljob.dev/recorded": None}}]


@pytest.mark.parametrize(
    ("uid", "reported"),
    [
        pytest.param("u0", status(ended=True), id="on a claim of another job"),
        pytest.param(UID, status(ended=True, recorded=None), id="nothing was recorded"),
        pytest.param(UID, status(ended=True, epoch=0), id="it has begun nothing: an earlier job has"),
    ],
)
def test_nothing_is_noted(uid: str, reported: RLJobStatus) -> None:
    server = Server(claim_of(wanted(quickstart(), uid=UID)))
    asyncio.run(make(server).note_record(uid, reported))
    assert server.patches == []


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        pytest.param("240 240-e2-a", RetainedRun(NAME, 240, "240-e2-a"), id="a job that ended"),
        pytest.param("", RetainedRun(NAME), id="a job that was deleted while it ran"),
        pytest.param("240", RetainedRun(NAME, 240), id="without its folder"),
        pytest.param("somebody's words", RetainedRun(NAME), id="what somebody wrote"),
    ],
)
def test_what_is_retained_for_a_job(recorded: str, expected: RetainedRun) -> None:
    made = wanted(quickstart())
    server = Server(claim_of(made))
    server.raw["metadata"]["annotations"] |= {"rljob.dev/recorded": recorded}
    server.put()
    assert retained_run(KEY, UID, server.cache.owned(KEY), made) == expected
    assert retained_run(KEY, "u2", server.cache.owned(KEY), wanted(quickstart(), uid="u2")) == expected
    other_run = wanted(changed(quickstart(), seed=7), uid="u2")
    assert retained_run(KEY, "u2", server.cache.owned(KEY), other_run) is None
    assert retained_run(KEY, UID, {}, made) is None


@pytest.mark.parametrize(
    ("on_delete", "there", "uid", "expected"),
    [
        pytest.param(None, Found.PROMISED, UID, Found.PROMISED, id="as release 0.2.0 left it"),
        pytest.param("Retain", Found.PROMISED, UID, Found.NOTHING, id="the spec says what becomes of it"),
        pytest.param(None, Found.PROMISED, "u2", Found.NOTHING, id="of an earlier job"),
        pytest.param(None, Found.NOTHING, UID, Found.NOTHING, id="as this version makes it"),
    ],
)
def test_what_there_is_of_the_claim(on_delete: str | None, there: Found, uid: str, expected: Found) -> None:
    server = Server(claim_of(wanted(quickstart(), there=there)))
    job = changed(quickstart(), checkpoint={"volume": {"onDelete": on_delete}})
    assert found(job.spec, KEY, uid, server.cache.owned(KEY)) is expected
    assert found(job.spec, KEY, uid, {}) is Found.NOTHING


def test_an_apply_keeps_the_size_that_the_claim_has() -> None:
    server = Server(claim_of(wanted(quickstart())))
    larger = claim_of(wanted(sized("20Gi")))
    known = server.cache.owned(KEY)["PersistentVolumeClaim", NAME]
    assert as_large_as_it_is(larger, known)["spec"]["resources"] == {"requests": {"storage": "10Gi"}}
    assert larger["spec"]["resources"] == {"requests": {"storage": "20Gi"}}
    other = wanted(quickstart())[0]
    assert as_large_as_it_is(other, known) is other
