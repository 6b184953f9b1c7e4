"""Jobs that cost too much are named and left out, while others are served; jobs at rest keep nothing that was built."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import pytest

from rljob_api.cluster import config_name
from rljob_api.spec_size import MAX_SPEC_BYTES
from rljob_api.status import AcceptedStatus, Condition, RestartStatus, RLJobStatus
from rljob_api.times import timestamp
from rljob_operator.build import JOB_KEY, job_file
from rljob_operator.cluster.builds import cost_of
from rljob_operator.cluster.job import JobMemory
from rljob_operator.kube.stored_spec import StoredSpec
from rljob_operator.options import OperatorOptions
from tests.unit.build.jobs import changed, quickstart
from tests.unit.test_reconcile import JOB, KEY, Server, Turns, accepted_of, path_of

OLDER: dict[str, Any] = {
    "metadata": {"name": "older", "namespace": KEY.namespace, "uid": "u0", "resourceVersion": "1"},
    "spec": {},
    "status": {},
}
"""Of the same second, which its name decides."""


def suspended() -> RLJobStatus:
    condition = Condition(
        type="Suspended", status="True", reason="Suspended", message="", last_transition_time=timestamp(time.time())
    )
    return RLJobStatus(conditions=[condition], restart=RestartStatus.model_validate({"epoch": 1, "opened": 1}))


def memory_of(turns: Turns) -> JobMemory:
    return turns._reconciler._memories[KEY]


def test_a_job_beyond_its_namespaces_number_waits_and_begins_when_there_is_room() -> None:
    server = Server()
    options = OperatorOptions.model_validate({"jobsPerNamespace": 1})
    turns = Turns(server, RLJobStatus(), has_objects=False, options=options)
    cache = turns._reconciler._world.cache
    cache.put_job(OLDER)
    for _ in range(2):
        observe = turns.turn()
    assert observe is not None
    assert observe.in_seconds <= 10.0
    assert accepted_of(server)[:2] == ("False", "TooManyJobs")
    assert [each["reason"] for each in server.events] == ["TooManyJobs"], "once"
    assert {path for verb, path in server.written if verb != "create"} == {JOB}, "nothing is made of it"

    cache.drop_job(OLDER)
    turns.turn()
    assert any(verb == "apply" for verb, _ in server.written)


def test_a_job_that_is_too_large_is_named_and_nothing_is_built_for_it() -> None:
    server = Server()
    turns = Turns(server, RLJobStatus(), has_objects=False)
    raw = turns._reconciler._world.cache.job(KEY)
    assert raw is not None
    spec = quickstart().spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    raw["spec"] = StoredSpec.of({**spec, "image": "x" * 200_000})
    turns.turn()
    assert accepted_of(server)[:2] == ("False", "InvalidSpec")
    assert "of which image is 196 KiB, and a cluster takes 128 KiB" in accepted_of(server)[2]
    assert [each["reason"] for each in server.events] == ["InvalidSpec"]
    assert memory_of(turns).manifests._known is None


def test_a_job_that_became_too_large_goes_on_by_its_last_spec() -> None:
    server = Server()
    turns = Turns(server, RLJobStatus(), has_objects=False)
    turns.turn()
    found = server.objects[JOB]
    edited = {"spec": {**found["spec"], "image": "x" * 200_000}, "metadata": {**found["metadata"], "generation": 2}}
    turns.cache.put_job(server.put(JOB, {**found, **edited}))
    turns.turn()
    assert accepted_of(server)[:2] == ("False", "InvalidSpec")
    assert memory_of(turns).manifests._known is not None, "its objects are still brought to what they are to be"
    assert turns._reconciler._retained._total == cost_of(MAX_SPEC_BYTES), "which takes memory as before"


def test_a_suspended_job_keeps_nothing_and_one_that_runs_keeps_what_was_built() -> None:
    running = Turns(Server(), RLJobStatus(), has_objects=False)
    running.turn()
    assert memory_of(running).manifests._known is not None
    resting = Turns(Server(), suspended(), has_objects=True, suspend=True)
    resting.turn()
    memory = memory_of(resting)
    assert memory.manifests._known is memory.manifests._judged is None
    accepted = memory.accepted
    assert (accepted._job, accepted._revision, accepted._accepted) == (None, None, None)


REACHING = {"roles": {"rollout": {"template": {"spec": {"terminationGracePeriodSeconds": 86400}}}}}
SIDECAR = {"name": "tracker", "image": "ours:1", "command": ["feed"]}
TRACKER = {"infrastructure": {"template": {"spec": {"containers": [SIDECAR]}}}}
SCRATCH = {"spec": {"volumes": [{"name": "run", "emptyDir": {}}]}}
TRACKED = {"roles": {"actor": {"template": SCRATCH}}, "telemetry": {"reportTo": ["tensorboard"]}}
LONG = {"env": [{"name": "LONG", "value": "x" * 131_072}], "name": "worker"}
SIZED = {"roles": {"rollout": {"template": {"spec": {"containers": [LONG]}}}}}


def having_accepted(server: Server, epoch: int, newest: dict[str, Any], accepted: dict[str, Any]) -> Turns:
    """Of a job whose newest spec release 0.2.0 takes, as an operator finds it that is of a newer release."""
    digest = hashlib.sha256(job_file(changed(quickstart(), **accepted), KEY.namespace).encode()).hexdigest()
    restart = RestartStatus.model_validate({"epoch": epoch, "opened": epoch})
    status = RLJobStatus(accepted=AcceptedStatus(generation=1, digest=digest), restart=restart)
    text = job_file(changed(quickstart(), **newest), KEY.namespace)
    turns = Turns(server, status, has_objects=epoch > 0, **newest)
    server.put(path_of("ConfigMap", config_name(KEY.name)), {"metadata": {}, "data": {JOB_KEY: text}})
    return turns


NEWER_RULES = [
    pytest.param(REACHING, "terminationGracePeriodSeconds: 86400 is more than 3600", id="what reaches beyond it"),
    pytest.param(TRACKER, "containers[tracker].command: cannot be patched", id="a container of a newer name"),
    pytest.param(TRACKED, "telemetry.reportTo: trackers read and write the checkpoint volume", id="a rule"),
    pytest.param(SIZED, "spec: is 132 KiB of JSON", id="a bound of sizes"),
]


@pytest.mark.parametrize(
    ("epoch", "was_accepted", "goes_on"),
    [
        pytest.param(1, True, True, id="a job that has begun by it goes on"),
        pytest.param(0, True, False, id="one that has not does not begin"),
        pytest.param(1, False, False, id="an edit of the ConfigMap is not gone by"),
    ],
)
@pytest.mark.parametrize(("newest", "sentence"), NEWER_RULES)
def test_what_a_newer_rule_refuses_is_left_where_an_earlier_release_has_accepted_it(
    newest: dict[str, Any], sentence: str, epoch: int, *, was_accepted: bool, goes_on: bool
) -> None:
    server = Server()
    turns = having_accepted(server, epoch, newest, newest if was_accepted else {})
    for _ in range(2):
        turns.turn()
    assert accepted_of(server)[:2] == ("False", "InvalidSpec")
    assert sentence in accepted_of(server)[2]
    assert (memory_of(turns).manifests._known is not None) is goes_on
