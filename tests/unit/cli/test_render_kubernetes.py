"""`rljob render --kubernetes` shows what the operator would make, and refuses what it would refuse."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_cli.main import cli
from tests.unit.build.jobs import EXAMPLES, HERE

_QUICKSTART = str(EXAMPLES / "quickstart.yaml")


def _run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["render", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_objects_are_printed_without_an_owner_and_without_the_secret() -> None:
    objects = list(yaml.safe_load_all(_run(_QUICKSTART, "--kubernetes")))
    assert {"Deployment", "StatefulSet", "Service", "ConfigMap"} <= {found["kind"] for found in objects}
    assert "Secret" not in {found["kind"] for found in objects}
    assert all("ownerReferences" not in found["metadata"] for found in objects)
    assert {found["metadata"]["namespace"] for found in objects} == {"default"}


def test_warnings_are_comments() -> None:
    assert _run(_QUICKSTART, "--kubernetes").startswith("# checkpoint.volume.accessMode: ReadWriteOnce is not shared")
    assert not _run(str(HERE / "rich.yaml"), "--kubernetes").startswith("#")


def test_the_operators_options_are_used(tmp_path: Path) -> None:
    config = tmp_path / "options.yaml"
    config.write_text("workloads: {workerImage: registry.example/worker:7}\n")
    assert "image: registry.example/worker:7" in _run(_QUICKSTART, "--kubernetes", "--config", str(config))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "cannot be read (No such file or directory). Give the path of a file."),
        ("a: [", "is not YAML"),
        ("workloads: {workerimage: x}", "workerimage"),
        ("workloads: {podTemplate: {spec: null}}", "workloads.podTemplate.spec: null is not an object."),
    ],
)
def test_options_of_no_use_are_refused(tmp_path: Path, text: str | None, sentence: str) -> None:
    config = tmp_path / "options.yaml"
    if text is not None:
        config.write_text(text)
    assert sentence in _run(_QUICKSTART, "--kubernetes", "--config", str(config), code=EXIT_BAD_MANIFEST)


def test_a_template_that_the_operator_would_refuse_is_refused(tmp_path: Path) -> None:
    document = yaml.safe_load((EXAMPLES / "quickstart.yaml").read_text())
    document["spec"]["roles"]["rollout"] = {"template": {"metadata": {"name": "mine"}}}
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(document))
    message = _run(str(manifest), "--kubernetes", code=EXIT_BAD_MANIFEST)
    assert message.startswith("roles.rollout.template.metadata.name: cannot be patched.")


def test_options_without_kubernetes_are_a_wrong_use() -> None:
    assert "--config is for --kubernetes" in _run(_QUICKSTART, "--config", "x.yaml", code=2)
