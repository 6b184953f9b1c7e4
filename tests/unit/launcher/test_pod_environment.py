"""From a pod's environment, secret and job to endpoints; what is missing is one sentence."""

import json
from pathlib import Path

import pytest

from rljob_api.names import Role
from rljob_api.wire.identity import Endpoints, PodKey
from rljob_workers.pod_environment import PodEnvironment, of_role, role_of
from tests.integration.dcs.world import job

ENVIRON = {"RLJOB_NAME": "demo", "RLJOB_NAMESPACE": "team", "RLJOB_POD_IP": "10.0.0.7"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    secret = tmp_path / "etc/rljob/secret"
    secret.mkdir(parents=True)
    (secret / "token").write_text("a-token\n")
    (secret / "redis-password").write_text("p@ss/word")
    (tmp_path / "etc/rljob/job").mkdir()
    (tmp_path / "etc/rljob/job/job.json").write_text(job().model_dump_json())
    return tmp_path


def read(root: Path, **more: str) -> PodEnvironment:
    return PodEnvironment.read({**ENVIRON, "RLJOB_ROOT": str(root), **more})


def test_endpoints_are_the_names_of_the_jobs_services(root: Path) -> None:
    pod = read(root)
    endpoints = pod.endpoints(pod.job())
    assert endpoints.coordinator == "http://demo-coordinator.team.svc:8080"
    assert endpoints.control_redis == "redis://:p%40ss%2Fword@demo-control.team.svc:6379/0"
    assert endpoints.storage_units == [
        "redis://:p%40ss%2Fword@demo-storage-0.team.svc:6379/0",
        "redis://:p%40ss%2Fword@demo-storage-1.team.svc:6379/0",
    ]
    assert (endpoints.token, endpoints.address, endpoints.job) == ("a-token", "10.0.0.7", "demo")
    assert endpoints.run_dir == str(root / "var/lib/rljob")
    assert endpoints.weights_dir == str(root / "dev/shm/rljob")


def test_a_file_of_endpoints_stands_in_for_the_names(root: Path) -> None:
    given = Endpoints(
        job="demo",
        coordinator="http://localhost:1",
        token="t",
        control_redis="redis://localhost:2",
        storage_units=["redis://localhost:3", "redis://localhost:4", "redis://localhost:5"],
        run_dir="",
        weights_dir="",
    )
    (root / "endpoints.json").write_text(given.model_dump_json())
    pod = read(root, RLJOB_ENDPOINTS=str(root / "endpoints.json"))
    endpoints = pod.endpoints(pod.job())
    assert endpoints.coordinator == "http://localhost:1"
    assert endpoints.storage_units == given.storage_units[:2]
    assert endpoints.run_dir == str(root / "var/lib/rljob")


@pytest.mark.parametrize("name", ENVIRON)
def test_a_variable_that_is_missing_is_named(root: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is not set. Set it in the pod's template"):
        read(root, **{name: ""})


@pytest.mark.parametrize(("path", "what"), [("secret/token", "a secret"), ("secret/redis-password", "a secret")])
def test_a_secret_that_is_missing_is_named(root: Path, path: str, what: str) -> None:
    (root / "etc/rljob" / path).unlink()
    pod = read(root)
    with pytest.raises(ValueError, match=f"{path}: {what} cannot be read .*. Mount it there.$"):
        pod.endpoints(pod.job())


def test_an_empty_secret_is_named(root: Path) -> None:
    (root / "etc/rljob/secret/token").write_text("\n")
    pod = read(root)
    with pytest.raises(ValueError, match="token is empty"):
        pod.endpoints(pod.job())


def test_a_job_that_is_missing_or_not_understood_is_named(root: Path) -> None:
    path = root / "etc/rljob/job/job.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="is not an RLJob that this version understands"):
        read(root).job()
    path.unlink()
    with pytest.raises(ValueError, match="the job cannot be read"):
        read(root).job()


def test_roles_are_names_of_the_api() -> None:
    assert role_of({"RLJOB_ROLE": "actor_fwd"}) is Role.ACTOR_FWD
    with pytest.raises(ValueError, match=r"RLJOB_ROLE: 'actor-fwd' is not a role. Use one of rollout, actor"):
        role_of({"RLJOB_ROLE": "actor-fwd"})


def test_a_pod_of_another_role_is_refused() -> None:
    pod = PodKey(role=Role.ACTOR, replica=0)
    assert of_role(pod, Role.ACTOR, "u") == pod
    with pytest.raises(ValueError, match="pod u was made for role rollout, and it is ordered to be actor-0"):
        of_role(pod, Role.ROLLOUT, "u")


def test_a_pod_that_reads_what_its_cache_lacks_names_it_and_others_do_not_mind(root: Path) -> None:
    described = job().model_dump(mode="json")
    described["spec"]["model"] = {"path": "hf:nobody/nothing"}
    (root / "etc/rljob/job/job.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match=r"^model\.path: hf:nobody/nothing is not in the cache .* hf download nobody/"):
        read(root).job_of(Role.ACTOR)
    assert read(root).job_of(Role.ADVANTAGES).spec.model.path == "hf:nobody/nothing"
    assert read(root).job().spec.model.path == "hf:nobody/nothing"
