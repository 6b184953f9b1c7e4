"""What other clients have changed of a job's objects: found by who owns the fields, and restored."""

import asyncio
import copy
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.cluster import ANNOTATION_APPLIED, ANNOTATION_BUILT_FOR, ANNOTATION_TEMPLATE
from rljob_operator.kube.api import Api
from rljob_operator.kube.apply import ApplyOutcome, JobObjects
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.edits import PEACE_SECONDS, READ_AT_START_SECONDS, Edits, Restored, lost_fields, taken_by
from rljob_operator.kube.errors import refusal
from rljob_operator.kube.kinds import Resource
from rljob_operator.kube.views import JobKey, view_owned
from tests.unit.kube.managed import entry, fields_of, with_managed_fields

Json = dict[str, Any]
param = pytest.param
KEY, UID = JobKey("ns", "job"), "uid-1"
NAME = ("ConfigMap", "job-job")


def config(**changes: Any) -> Json:
    annotations = {ANNOTATION_APPLIED: "d1", ANNOTATION_BUILT_FOR: "r1"}
    owner = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "job", "uid": UID, "controller": True}
    metadata = {
        "name": NAME[1],
        "namespace": "ns",
        "labels": {"rljob.dev/job": "job"},
        "annotations": annotations,
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": NAME[0], "metadata": metadata, "data": {"job.json": "{}"}, **changes}


SERVICE: Json = {
    "kind": "Service",
    "metadata": {"labels": {"a": "1"}, "annotations": {}},
    "spec": {"selector": {"app": "x"}, "ports": [{"name": "http", "port": 8080}, {"name": "grpc", "port": 9090}]},
}
PORTS: Json = {
    'k:{"port":8080,"protocol":"TCP"}': {".": {}, "f:name": {}, "f:port": {}},
    'k:{"port":9090,"protocol":"TCP"}': {".": {}, "f:name": {}, "f:port": {}},
}
LABELS: Json = {"f:metadata": {"f:labels": {"f:a": {}}, "f:annotations": {}}}


def service(spec: Json) -> Json:
    return {**LABELS, "f:spec": spec}


SET: Json = {
    "kind": "Deployment",
    "metadata": {"labels": {"a": "1"}},
    "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "worker", "image": "i"}]}}},
}
CONTAINER: Json = {'k:{"name":"worker"}': {".": {}, "f:name": {}, "f:image": {}}}


def of_set(container: Json) -> Json:
    template = {"f:spec": {"f:containers": container}}
    return {"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:template": template}}


@pytest.mark.parametrize(
    ("manifest", "owned", "expected"),
    [
        param(SERVICE, service({"f:selector": {}, "f:ports": PORTS}), (), id="all is the operator's"),
        param(
            SERVICE,
            {**service({"f:selector": {}, "f:ports": PORTS}), "f:status": {}},
            (),
            id="a field that the manifest does not have is no loss",
        ),
        param(SERVICE, service({"f:ports": PORTS}), ("spec.selector.app",), id="a client has set another selector"),
        param(
            SERVICE,
            service({"f:selector": {}, "f:ports": {name: PORTS[name] for name in list(PORTS)[:1]}}),
            ("spec.ports[1]",),
            id="a client has removed an item of a list",
        ),
        param(
            SERVICE,
            service({"f:selector": {}, "f:ports": {**PORTS, next(iter(PORTS)): {".": {}, "f:port": {}}}}),
            ("spec.ports[0].name",),
            id="a client has changed a field of an item",
        ),
        param(SERVICE, {}, ("metadata", "spec"), id="a client has removed the operator's entry"),
        param(SET, of_set(CONTAINER), (), id="replicas are scaled by a patch of their own"),
        param(
            SET,
            of_set({'k:{"name":"worker"}': {".": {}, "f:name": {}}}),
            ("spec.template.spec.containers[0].image",),
            id="a client has set another image",
        ),
    ],
)
def test_fields_that_the_operator_does_not_own_any_more(manifest: Json, owned: Json, expected: tuple[str, ...]) -> None:
    assert lost_fields(manifest, owned) == expected


NAMES = st.text("abc", min_size=1, max_size=2)
LEAVES = st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), min_size=1, max_size=2))
TREES = st.recursive(LEAVES, lambda below: st.dictionaries(NAMES, below, min_size=1, max_size=3), max_leaves=8)


@given(st.dictionaries(NAMES, TREES, min_size=1, max_size=3), st.data())
def test_each_single_field_that_is_taken_is_found_and_none_other(data: Json, pick: st.DataObject) -> None:
    manifest = {"kind": "ConfigMap", "metadata": {}, "data": data}
    owned = {"f:metadata": {"f:labels": {}}, "f:data": fields_of(data)}
    assert lost_fields(manifest, owned) == ()

    below, at = owned["f:data"], "data"
    while below:
        name = pick.draw(st.sampled_from(sorted(below)))
        at += f".{name[2:]}"
        if not below[name] or pick.draw(st.booleans()):
            below[name + "?"] = below.pop(name)  # it stays a map that is owned in parts
            break
        below = below[name]
    (found,) = lost_fields(manifest, owned)
    assert found == at or found.startswith(f"{at}.")


@pytest.mark.parametrize(
    ("managed", "expected"),
    [
        param([entry({"f:data": {"f:job.json": {}}}, "kubectl-edit", "Update")], ["kubectl-edit"], id="one has it"),
        param([entry({"f:data": {"f:other": {}}}, "kubectl-edit", "Update")], [], id="one has another field"),
        param([], [], id="it was removed"),
        param(
            [{**entry({"f:data": {"f:job.json": {}}}, "kubelet", "Update"), "subresource": "status"}],
            [],
            id="the status is no part of it",
        ),
    ],
)
def test_who_has_taken_a_field(managed: list[Json], expected: list[str]) -> None:
    assert taken_by(config(), ("data.job.json",), managed) == expected


@pytest.mark.parametrize(
    ("restored", "expected"),
    [
        param(
            Restored(*NAME, ("data.job.json",), ("kubectl-edit",)),
            "ConfigMap job-job was changed by kubectl-edit: data.job.json. It is restored",
            id="by a client that is known",
        ),
        param(Restored(*NAME, ("a", "b", "c", "d", "e", "f")), "another client: a, b, c, d and 2 more.", id="many"),
        param(Restored(*NAME), "ConfigMap job-job was deleted by another client; it has been made again", id="deleted"),
    ],
)
def test_the_sentence_of_a_restoration(restored: Restored, expected: str) -> None:
    assert expected in str(restored)


class Server:
    """Keeps one ConfigMap with who owns its fields, as an API server does."""

    def __init__(self) -> None:
        self.found: Json | None = None
        self.version = 0
        self.made = 0
        self.deletions = 0
        self.job: Json | None = {"uid": UID}
        """Metadata of the RLJob."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        if self.found is None:
            raise refusal("GET", 404, "NotFound", "")
        return copy.deepcopy(self.found)

    async def get_metadata(self, resource: Resource, namespace: str, name: str) -> Json:
        if self.job is None:
            raise refusal("GET", 404, "NotFound", "")
        return {"metadata": self.job}

    async def apply_new(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        if self.found is not None:
            raise refusal("PATCH", 409, "Conflict", "")
        self.made += 1
        return self._stored(body)

    async def apply(self, resource: Resource, namespace: str, name: str, body: Json, uid: str) -> Json:
        assert self.found is not None
        if self.found.get("immutable") and self.found["data"] != body["data"]:
            raise refusal("PATCH", 422, "Invalid", "data: field is immutable when `immutable` is set")
        made = {**with_managed_fields(body), "immutable": self.found.get("immutable")}
        labels = {**self.found["metadata"]["labels"], **body["metadata"]["labels"]}
        wanted = {**self._numbered(made), "metadata": {**self._numbered(made)["metadata"], "labels": labels}}
        known = {**self.found, "metadata": {**self.found["metadata"], "resourceVersion": ""}}
        if known == {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": ""}}:
            return copy.deepcopy(self.found)
        return self._stored(made, labels)

    async def delete(self, resource: Resource, namespace: str, name: str, options: Json) -> Json:
        assert self.found is not None
        assert options["preconditions"]["uid"] == self.found["metadata"]["uid"]
        self.found, self.deletions = None, self.deletions + 1
        return {}

    def edit(self, manager: str = "kubectl-edit", **changes: Any) -> None:
        """Another client's update, which takes `data.job.json` where it is changed."""
        assert self.found is not None
        edited = {**self.found, **changes}
        fields = copy.deepcopy(edited["metadata"]["managedFields"][0]["fieldsV1"])
        taken = "data" in changes
        if taken:
            fields.pop("f:data", None)
        theirs = entry({"f:data": {"f:job.json": {}}} if taken else {"f:immutable": {}}, manager, "Update")
        self.version += 1
        metadata = {"managedFields": [entry(fields), theirs], "resourceVersion": str(self.version)}
        self.found = {**edited, "metadata": {**edited["metadata"], **metadata}}

    def _numbered(self, body: Json) -> Json:
        metadata = {**body["metadata"], "uid": f"uid-of-{self.made}", "resourceVersion": str(self.version)}
        return {**body, "metadata": metadata}

    def _stored(self, body: Json, labels: Json | None = None) -> Json:
        self.version += 1
        made = self._numbered(with_managed_fields(body) if "managedFields" not in body["metadata"] else body)
        if labels is not None:
            made["metadata"]["labels"] = labels
        self.found = made
        return copy.deepcopy(made)


class Setting:
    """Turns of an operator over one object."""

    def __init__(self) -> None:
        self.server, self.now = Server(), 1000.0
        self.restart()

    def restart(self) -> None:
        """Another operator, which has listed what is there and remembers nothing."""
        self.cache = Cache(lambda key, cause: None)
        self.edits = Edits(lambda: self.now)
        self.objects = JobObjects(cast(Api, self.server), self.cache, KEY, UID, edits=self.edits)

    def turn(self, manifest: Json | None = None) -> list[str]:
        """What the operator reports; its watches have reported all there is."""
        if self.server.found is not None:
            self.cache.put_owned(KEY, view_owned(NAME[0], self.server.found))
        elif view := self.cache.owned(KEY).get(NAME):
            self.cache.drop(NAME[0], {"metadata": {**config()["metadata"], "uid": view.uid, "resourceVersion": "99"}})
        outcome = asyncio.run(self._carry_out(manifest or config()))
        assert outcome.refusals == ()
        return [str(each) for each in outcome.restored]

    async def _carry_out(self, manifest: Json) -> ApplyOutcome:
        return await self.objects.carry_out(self.objects.difference([manifest]))


def test_an_edit_is_restored_at_once_and_named() -> None:
    setting = Setting()
    assert setting.turn() == []
    setting.server.edit(data={"job.json": "mine"})

    (message,) = setting.turn()
    assert message.startswith("ConfigMap job-job was changed by kubectl-edit: data.job.json. ")
    assert setting.server.found is not None
    assert setting.server.found["data"] == {"job.json": "{}"}
    assert setting.turn() == []


def test_an_edit_that_was_made_while_no_operator_ran_is_found_by_the_next() -> None:
    setting = Setting()
    setting.turn()
    setting.server.edit(data={"job.json": "mine"})
    setting.restart()

    (message,) = setting.turn()
    assert "by kubectl-edit" in message


def test_a_field_that_was_removed_is_made_again() -> None:
    setting = Setting()
    setting.turn()
    setting.server.edit(data={})
    assert setting.server.found is not None
    setting.server.found["metadata"]["managedFields"].pop()

    (message,) = setting.turn()
    assert message.startswith("ConfigMap job-job was changed by another client: data.")
    assert setting.server.found["data"] == {"job.json": "{}"}


def test_labels_of_others_stay_and_are_no_edit() -> None:
    setting = Setting()
    setting.turn()
    assert setting.server.found is not None
    setting.server.found["metadata"]["labels"]["team"] = "blue"
    setting.server.version += 1

    version = setting.server.version
    assert setting.turn() == []
    assert setting.server.version == version
    assert setting.server.found["metadata"]["labels"]["team"] == "blue"


def test_one_that_was_made_immutable_is_made_again() -> None:
    setting = Setting()
    setting.turn()
    setting.server.edit(data={"job.json": "mine"}, immutable=True)

    (message,) = setting.turn()
    assert "data.job.json, immutable" in message
    assert setting.server.deletions == 1
    assert setting.server.found is not None
    assert setting.server.found["data"] == {"job.json": "{}"}
    assert setting.turn() == []


def test_one_that_was_deleted_is_made_again_and_named() -> None:
    setting = Setting()
    setting.turn()
    setting.server.found = None

    assert setting.turn() == [str(Restored(*NAME))]
    assert setting.turn() == []


@pytest.mark.parametrize(
    "job",
    [
        param({"uid": UID, "deletionTimestamp": "2026-11-01T00:00:00Z"}, id="it waits for its objects' end"),
        param({"uid": "uid-2"}, id="another has its name"),
        param(None, id="it is gone"),
    ],
)
def test_what_is_deleted_with_its_job_is_not_made_again(job: Json | None) -> None:
    """The garbage collector is faster than the watch of RLJobs."""
    setting = Setting()
    setting.turn()
    setting.server.found, setting.server.job = None, job

    assert setting.turn() == []
    assert setting.server.found is None


def test_a_client_that_insists_is_followed_ever_more_seldom_and_after_a_peace_at_once() -> None:
    setting = Setting()
    setting.turn()
    messages, restored_at = [], []
    for _ in range(1800):
        setting.server.edit("other-operator", data={"job.json": "theirs"})
        if found := setting.turn():
            messages += found
            restored_at.append(setting.now)
        due = setting.edits.due_in
        assert due is None or due > 0
        setting.now += 1

    assert [at - restored_at[0] for at in restored_at] == [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 811, 1111, 1411, 1711]
    assert len(set(messages)) == 1, "one Event, which is repeated"
    setting.turn()
    setting.now += PEACE_SECONDS + 300
    setting.server.edit("other-operator", data={"job.json": "theirs"})
    assert len(setting.turn()) == 1
    setting.now += 1.0
    setting.server.edit("other-operator", data={"job.json": "theirs"})
    assert len(setting.turn()) == 1


def test_a_client_that_deletes_again_and_again_is_followed_ever_more_seldom() -> None:
    setting = Setting()
    setting.turn()
    made_at = []
    for _ in range(100):
        setting.server.found = None
        if setting.turn():
            made_at.append(setting.now)
        due = setting.edits.due_in
        assert due is None or due > 0
        setting.now += 1
    assert [at - made_at[0] for at in made_at] == [0, 1, 3, 7, 15, 31, 63]


def test_a_field_that_the_api_server_gives_to_another_at_once_is_no_edit() -> None:
    """As a mutating webhook does."""
    setting = Setting()
    setting.turn()
    setting.server.edit("a-webhook", data={"job.json": "mutated"})
    assert setting.server.found is not None
    setting.edits.wrote(config(), view_owned(NAME[0], setting.server.found))

    assert [setting.turn() for _ in range(3)] == [[], [], []]


def test_a_new_content_of_the_job_is_no_edit_and_is_applied() -> None:
    setting = Setting()
    setting.turn()
    new = config(data={"job.json": "new"})
    new["metadata"]["annotations"] = {ANNOTATION_APPLIED: "d2", ANNOTATION_BUILT_FOR: "r2"}

    assert setting.turn(new) == []
    assert setting.server.found is not None
    assert setting.server.found["data"] == {"job.json": "new"}


def test_what_started_since_may_have_read_the_edited_one() -> None:
    setting = Setting()
    setting.turn()
    assert not setting.edits.may_have_been_read(NAME)
    setting.server.edit(data={"job.json": "mine"})
    setting.turn()
    assert setting.edits.may_have_been_read(NAME)
    setting.now += READ_AT_START_SECONDS
    assert not setting.edits.may_have_been_read(NAME)


def test_a_set_of_another_version_of_the_operator_is_left_alone() -> None:
    """Its manifest is not known: its template is another, and its fields are no loss."""
    metadata = {"name": "a", "labels": {"new": "1"}, "annotations": {ANNOTATION_APPLIED: "new"}, "uid": "u"}
    template = {"metadata": {"annotations": {ANNOTATION_TEMPLATE: "t2"}}}
    wanted = {"kind": "Deployment", "metadata": metadata, "spec": {"template": template}}
    old = {"name": "a", "uid": "u", "resourceVersion": "1", "annotations": {ANNOTATION_APPLIED: "old"}}
    there = {"metadata": old, "spec": {"template": {"metadata": {"annotations": {ANNOTATION_TEMPLATE: "t1"}}}}}

    assert Edits().lost(wanted, view_owned("Deployment", there)) == ()
