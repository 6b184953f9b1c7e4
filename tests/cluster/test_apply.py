"""A job is stored as its file says, applied by anyone and in any way, and applying it again changes nothing.

By kubectl, since what it sends and what it compares is what matters here. One kubectl applies all jobs of a test.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from rljob_api.cluster import API_GROUP, API_VERSION, RLJOB_PLURAL
from rljob_api.generate.crd import Defaults, crd, spec_schema
from rljob_api.manifest import document_of, parsed, read_manifest
from rljob_api.open_defaults import JobPlace, resolve
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, KubectlFailed, Object
from tests.cluster.harness.machine import REPOSITORY, Cluster
from tests.cluster.random_specs import emptied, random_jobs
from tests.unit.api.api_server import defaulted
from tests.unit.api.manifests import changed

RANDOM = pytest.mark.parametrize(
    "num_random",
    [pytest.param(5, id="5 random jobs"), pytest.param(50, id="50 random jobs", marks=pytest.mark.long)],
)
APPLY = {"client": ("apply", "-f", "-"), "server": ("apply", "--server-side", "-f", "-")}
DIFF = {"client": ("diff", "-f", "-"), "server": ("diff", "--server-side", "-f", "-")}
EXAMPLES = sorted(
    path
    for path in (*REPOSITORY.glob("examples/*.yaml"), *REPOSITORY.glob("examples/*/*.yaml"))
    if "kind: RLJob" in path.read_text()
)


@pytest.fixture(scope="module", autouse=True)
def definition(cluster: Cluster) -> None:
    """The CRD of the models."""
    install_definition(cluster.kubeconfig)


def examples() -> list[Object]:
    """All of them, under names of their own."""
    documents = [document_of(read_manifest(path), str(path)) for path in EXAMPLES]
    return [named(each, f"example-{number}") for number, each in enumerate(documents)]


def named(job: Object, name: str) -> Object:
    """With an annotation: without any kubectl notes {} by the client, and nothing by the server, which it compares."""
    return {**job, "metadata": {"name": name, "annotations": {"example.com/file": name}}}


def jobs(num_random: int) -> tuple[list[Object], list[Object]]:
    """Examples and random jobs, and the same without what their optional objects have."""
    full, less = random_pairs(num_random)
    return [*examples(), *full], [*map(emptied, examples()), *less]


def random_pairs(num_random: int) -> tuple[list[Object], list[Object]]:
    pairs = [
        (named(full, f"random-{number}"), named(less, f"random-{number}"))
        for number, (full, less) in enumerate(random_jobs(num_random))
    ]
    return [full for full, _ in pairs], [less for _, less in pairs]


def name_of(job: Object) -> str:
    return str(job["metadata"]["name"])


def as_list(objects: list[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def meaning(job: Object) -> Any:
    """The job as `rljob render` shows it."""
    document = changed({})
    return resolve(parsed({**document, "spec": job["spec"]}).spec, JobPlace.MACHINE).spec.model_dump()


def stored(kubectl: Kubectl, kind: str = RLJOB_PLURAL) -> dict[str, Object]:
    return {name_of(each): each for each in kubectl.all(kind)}


def specs(kubectl: Kubectl) -> dict[str, tuple[int, Object]]:
    """Generation and spec of each job."""
    return {name: (job["metadata"]["generation"], job["spec"]) for name, job in stored(kubectl).items()}


def assert_is_what_is_stored(kubectl: Kubectl, files: list[Object], kind: str = RLJOB_PLURAL) -> None:
    there = stored(kubectl, kind)
    assert {name_of(each) for each in files} == set(there)
    for each in files:
        assert meaning(there[name_of(each)]) == meaning(each), each


def assert_no_difference(kubectl: Kubectl, files: list[Object]) -> None:
    """kubectl diff exits with 1 where there is one, which the harness raises for."""
    for way, command in DIFF.items():
        assert kubectl(*command, stdin=as_list(files)) == "", way


@pytest.mark.parametrize(
    ("ways", "num_random"),
    [
        pytest.param(("client", "server"), 5, id="client then server"),
        pytest.param(("client", "server"), 50, id="client then server, 50 random jobs", marks=pytest.mark.long),
        pytest.param(("server", "client"), 50, id="server then client, 50 random jobs", marks=pytest.mark.long),
    ],
)
def test_a_job_is_stored_as_its_file_states_and_applied_again_it_stays_as_it_is(
    kubectl: Kubectl, ways: tuple[str, str], num_random: int
) -> None:
    """Also where the next file has {} for an object that had something in it."""
    full, less = jobs(num_random)
    assert [one for one, other in zip(full, less, strict=True) if one != other]
    for files in (full, less):
        kubectl(*APPLY[ways[0]], stdin=as_list(files))
        before = specs(kubectl)
        assert_is_what_is_stored(kubectl, files)
        for way in reversed(ways):
            kubectl(*APPLY[way], stdin=as_list(files))
            assert specs(kubectl) == before
        assert_no_difference(kubectl, files)


def test_what_kubectl_prints_of_a_job_can_be_applied_and_then_its_file_again(kubectl: Kubectl) -> None:
    files = examples()
    kubectl(*APPLY["server"], stdin=as_list(files))
    before = specs(kubectl)
    assert_is_what_is_stored(kubectl, files)
    for way in APPLY:
        kubectl(*APPLY[way], stdin=kubectl("get", "rljobs", "-o", "yaml"))
        assert kubectl(*DIFF["client"], stdin=as_list(files)) == ""
        # By the server: the client would take away the resourceVersion that it has noted as applied.
        kubectl(*APPLY["server"], stdin=as_list(files))
        assert specs(kubectl) == before
        assert_no_difference(kubectl, files)


@RANDOM
def test_several_managers_apply_the_same_file_without_a_conflict(kubectl: Kubectl, num_random: int) -> None:
    files, less = random_pairs(num_random)
    kubectl("create", "-f", "-", stdin=as_list(files))
    before = specs(kubectl)
    for manager in ("flux", "argo"):
        kubectl(*APPLY["server"], f"--field-manager={manager}", stdin=as_list(files))
        assert specs(kubectl) == before
    kubectl(*APPLY["server"], "--field-manager=argo", "--force-conflicts", stdin=as_list(less))
    assert_is_what_is_stored(kubectl, less)


def test_what_others_set_beside_the_file_stays_and_is_no_difference(kubectl: Kubectl) -> None:
    """A scaler's replicas, a break, and a restart that was asked for: the file names none of them."""
    roles: Object = {"reference": {}, "actorFwd": {}, "advantages": {}}
    file = named(changed({"spec.roles": roles, "spec.rollout.partial": {}}), "demo")
    for way in APPLY:
        kubectl(*APPLY[way], stdin=as_list([file]))
        kubectl("scale", "rlj/demo", "--replicas=3")
        restart = {"id": f"by-{way}", "role": "reference", "reason": "it is slow"}
        kubectl.merge("rljob", "demo", {"spec": {"suspend": True, "restartRequest": restart}})
        kubectl.merge("rljob", "demo", {"spec": {"restartRequest": {"id": f"{way}-again", "role": None}}})
        assert_no_difference(kubectl, [file])
        before = specs(kubectl)
        kubectl(*APPLY[way], stdin=as_list([file]))
        assert specs(kubectl) == before
        spec = before["demo"][1]
        assert (spec["roles"]["rollout"]["replicas"], spec["suspend"]) == (3, True)
        assert spec["restartRequest"] == {"id": f"{way}-again", "reason": "it is slow"}


def test_a_patch_inside_what_a_file_replaces_is_a_conflict_until_it_is_forced(kubectl: Kubectl) -> None:
    file = changed({"spec.roles": {"reference": {}}})
    kubectl(*APPLY["server"], stdin=as_list([file]))
    kubectl.merge("rljob", "demo", {"spec": {"roles": {"reference": {"threads": 4}}}})
    with pytest.raises(KubectlFailed, match=r'conflict with "kubectl-patch".*\.spec\.roles\.reference'):
        kubectl(*APPLY["server"], stdin=as_list([file]))
    kubectl(*APPLY["server"], "--force-conflicts", stdin=as_list([file]))
    assert_is_what_is_stored(kubectl, [file])


BEFORE = "befores"
GROUP = f"before.{API_GROUP}"
"""The group of a definition of this test's own: the cluster's other tests have today's all the time."""


def definition_of(spec: Object) -> Object:
    made = copy.deepcopy(crd())
    made["metadata"]["name"] = f"{BEFORE}.{GROUP}"
    made["spec"] |= {"group": GROUP, "names": {"kind": "Before", "listKind": "BeforeList", "plural": BEFORE}}
    made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec
    return made


def by_fields(schema: Object) -> Object:
    """As definitions were before: managers own fields of each object, and the API server fills in all defaults."""
    schema = {key: value for key, value in schema.items() if key != "x-kubernetes-map-type"}
    if "properties" in schema:
        schema["properties"] = {name: by_fields(part) for name, part in schema["properties"].items()}
    if "items" in schema:
        schema["items"] = by_fields(schema["items"])
    return schema


def install(kubectl: Kubectl, spec: Object) -> None:
    """The definition with this schema, once a new job's `reference: {}` has the defaults that the schema gives it."""
    reference = defaulted(spec, changed({})["spec"])["roles"]["reference"]
    kubectl(*APPLY["server"], stdin=yaml.safe_dump(definition_of(spec)))
    job = json.dumps(as_before(changed({})))

    def is_in_force() -> bool:
        try:
            made = kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=job)
        except KubectlFailed:
            return False
        return bool(json.loads(made)["spec"]["roles"]["reference"] == reference)

    kubectl.wait("the definition to be in force", is_in_force)


def as_before(job: Object) -> Object:
    return {**job, "apiVersion": f"{GROUP}/{API_VERSION}", "kind": "Before"}


@pytest.fixture
def earlier(kubectl: Kubectl) -> Iterator[Kubectl]:
    """The earlier definition. It goes with its jobs."""
    install(kubectl, by_fields(spec_schema(Defaults.ALL)))
    yield kubectl
    kubectl.delete("crd", f"{BEFORE}.{GROUP}")


@RANDOM
def test_jobs_that_an_earlier_definition_has_stored_are_applied_on(earlier: Kubectl, num_random: int) -> None:
    """Fixed fields are the same, though the API server had filled in all of its defaults."""
    full, less = ([as_before(each) for each in files] for files in random_pairs(num_random))
    by_client, by_server = ([named(each, f"{name_of(each)}-{way}") for each in full] for way in APPLY)
    earlier(*APPLY["client"], stdin=as_list(by_client))
    earlier(*APPLY["server"], stdin=as_list(by_server))
    install(earlier, spec_schema())
    earlier(*APPLY["client"], stdin=as_list(by_client))
    earlier(*APPLY["server"], stdin=as_list(by_server))
    assert_is_what_is_stored(earlier, [*by_client, *by_server], BEFORE)
    with pytest.raises(KubectlFailed, match=r'conflicts? with "kubectl-client-side-apply"'):
        earlier(*APPLY["server"], stdin=as_list(by_client))  # which the client has noted with all defaults inside
    for force in (["--force-conflicts"], []):
        earlier(*APPLY["server"], *force, stdin=as_list(by_client))
    earlier(*APPLY["client"], stdin=as_list(by_server))
    assert_is_what_is_stored(earlier, [*by_client, *by_server], BEFORE)
    for way in APPLY:
        fewer = [named(each, f"{name_of(each)}-{way}") for each in less]
        earlier(*APPLY[way], stdin=as_list(fewer))
    assert_is_what_is_stored(earlier, [named(each, f"{name_of(each)}-{way}") for each in less for way in APPLY], BEFORE)
