"""`rljob logs`: of a run folder, and the pod that reads the volume of a job that has ended."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rljob_api.cluster import LABEL_JOB, RUN_DIR, coordinator_name
from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_api.wire.logs import begins_line
from rljob_cli.jobs.cluster_logs import claim_of, reader_pod, rest_problem, volume_problem
from rljob_cli.main import cli
from rljob_operator.build import Owner, Platform, manifests
from rljob_operator.options import OperatorOptions
from tests.unit.api.manifests import changed

MARK = begins_line("2026-01-01T00:00:00Z")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["logs", *arguments])
    return result.exit_code, result.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.json").write_text("{}")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/actor-0.0.log").write_text(f"{MARK}one\ntwo\n{MARK}three\nfour\n")
    (tmp_path / "logs/actor_fwd-0.0.log").write_text(f"{MARK}forward\n")
    (tmp_path / "logs/coordinator.log").write_text("state\n")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "==> actor-0.0 <==\nthree\nfour\n==> actor_fwd-0.0 <==\nforward\n==> coordinator <==\nstate\n"),
        (["--role", "actor"], "==> actor-0.0 <==\nthree\nfour\n"),
        (["--role", "actor", "--lines", "1"], "==> actor-0.0 <==\nfour\n"),
        (["--previous"], "==> actor-0.0 <==\none\ntwo\n"),
        (["--previous", "--role", "actor_fwd"], "no life before the present one has left a log of actor_fwd.\n"),
    ],
)
def test_the_ends_of_a_runs_logs(folder: Path, options: list[str], expected: str) -> None:
    code, output = run(str(folder), *options)
    assert code == 0
    assert output.removeprefix(f"{folder}: ") == expected


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    assert run(str(tmp_path)) == (
        64,
        f"{tmp_path} is not the folder of a run: it has no job.json. Give the --out of a run.\n",
    )


def coordinator_of(**changes: Any) -> dict[str, Any]:
    """The Deployment of a job's coordinator, as the operator makes it."""
    job = RLJob.model_validate(changed(changes))
    owner = Owner(namespace="default", uid="u1")
    objects = manifests(job, owner, RLJobStatus(), OperatorOptions(), Platform(pod_groups=True))
    name = coordinator_name(job.metadata.name)
    return next(one for one in objects if (one["kind"], one["metadata"]["name"]) == ("Deployment", name))


JOB = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "demo", "uid": "u1"}}


def test_the_pod_that_reads_a_volume_is_the_coordinators_without_its_labels_and_its_right_to_write() -> None:
    deployment = coordinator_of()
    made = deployment["spec"]["template"]
    pod = reader_pod(JOB, deployment, "demo-logs-1", ["--role", "actor"])
    assert LABEL_JOB not in pod["metadata"]["labels"]
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "u1"
    assert "affinity" not in pod["spec"]
    assert pod["spec"]["securityContext"] == made["spec"]["securityContext"]
    assert not made["spec"]["volumes"][0]["persistentVolumeClaim"].get("readOnly"), "what was read is not changed"
    (container,) = pod["spec"]["containers"]
    command = container["command"]
    assert command[1:] == ["-m", "rljob_workers.kept_logs", "--role", "actor"]
    assert command[0] == made["spec"]["containers"][0]["command"][0]
    assert container["securityContext"] == made["spec"]["containers"][0]["securityContext"]
    assert [mount["readOnly"] for mount in container["volumeMounts"] if mount["mountPath"] == RUN_DIR] == [True]
    claims = [volume["persistentVolumeClaim"] for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume]
    assert [claim["readOnly"] for claim in claims] == [True]


def test_the_reader_asks_for_no_device_of_the_coordinators() -> None:
    """The API server refuses a container whose claims its pod does not have."""
    container = {"name": "coordinator", "resources": {"claims": [{"name": "card"}]}}
    claims = [{"name": "card", "resourceClaimName": "the-card"}]
    template = {"spec": {"containers": [container], "resourceClaims": claims}}
    deployment = coordinator_of(**{"spec.infrastructure": {"template": template}})
    assert deployment["spec"]["template"]["spec"]["resourceClaims"] == claims
    pod = reader_pod(JOB, deployment, "demo-logs-1", [])
    assert "resourceClaims" not in pod["spec"]
    (reader,) = pod["spec"]["containers"]
    assert reader["resources"].keys() == {"requests", "limits"}


def test_a_job_whose_run_folder_goes_with_its_pods_states_it() -> None:
    assert volume_problem("demo", coordinator_of()) is None
    run_folder: dict[str, Any] = {"name": "run", "emptyDir": {}, "persistentVolumeClaim": None}
    template = {"spec": {"volumes": [run_folder]}}
    deployment = coordinator_of(**{"spec.roles.actor": {"template": template}})
    message = volume_problem("demo", deployment)
    assert message is not None
    assert message.startswith("The RLJob demo has no volume that outlives its pods: its template gives the run folder")


@pytest.mark.parametrize(
    ("phase", "bound", "sentence"),
    [
        ("Succeeded", "Bound", None),
        ("Failed", "Bound", None),
        ("Suspended", "Bound", None),
        ("Failed", "Pending", "has ended before its volume was there (the claim is not bound)"),
        ("Starting", "Pending", "The RLJob demo is Starting and no pod of it runs that could be asked."),
        ("Running", "Bound", "The RLJob demo is Running and no pod of it runs that could be asked."),
    ],
)
def test_no_volume_is_mounted_before_its_job_has_come_to_rest(phase: str, bound: str, sentence: str | None) -> None:
    """One that is bound to the node of its first pod must not be bound by ours."""
    claim = {"status": {"phase": bound}}
    assert claim_of(coordinator_of()) == "demo-checkpoints"
    message = rest_problem({**JOB, "status": {"phase": phase}}, claim)
    assert (message is None) if sentence is None else (message is not None and sentence in message)
