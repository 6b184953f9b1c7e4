"""`rljob evaluate`: what it refuses before anything starts, and how its results look."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from rljob_api.names import EXIT_BAD_MANIFEST, Role
from rljob_api.spec import RLJob
from rljob_api.spec.evaluation import EvaluationSetSpec
from rljob_api.wire.checkpoint_evaluation import CheckpointEvaluation, ScoredSamples
from rljob_cli.jobs.evaluation import EvaluationRefused, engine_pods, with_sets
from rljob_cli.main import cli
from rljob_cli.ui.evaluation import progress_text, results_text
from tests.unit.api.manifests import changed

SETS = {"everySteps": 5, "sets": [{"name": name, "data": {"prompts": "prompts.jsonl"}} for name in ("held", "other")]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "12=", "label": "21"}\n')
    return tmp_path


def run(folder: Path, manifest: dict[str, Any], *options: str) -> Result:
    return CliRunner().invoke(cli, ["evaluate", str(written(folder, manifest)), *options])


def written(folder: Path, manifest: dict[str, Any]) -> Path:
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest))
    return folder / "job.yaml"


def test_a_manifest_without_sets_is_refused(folder: Path) -> None:
    result = run(folder, changed({}), "--checkpoint", str(folder))
    assert result.exit_code == EXIT_BAD_MANIFEST
    assert result.output.splitlines()[-1] == (
        "spec.evaluation is not given: there is no set to score. Add one, as docs/evaluation.md shows."
    )


def test_an_unknown_set_is_refused(folder: Path) -> None:
    options = ["--checkpoint", str(folder), "--set-name", "held", "--set-name", "hold"]
    result = run(folder, changed({"spec.evaluation": SETS}), *options)
    assert result.exit_code == EXIT_BAD_MANIFEST
    assert result.output.splitlines()[-1] == (
        "--set-name: hold is no set of spec.evaluation.sets (held, other). Give one of these."
    )


def test_what_ends_training_does_not_bind_the_number_of_samples(folder: Path) -> None:
    """The metric of `stopWhen` names 1 sample; with 4 it is no metric of this job, which is not trained here."""
    goals = {"spec.stopWhen": {"metric": "eval/held/mean@1", "above": 0.5}}
    goals["spec.checkpoint"] = {"keepBest": {"metric": "eval/held/mean@1"}}
    manifest = changed({"spec.evaluation": SETS, **goals})
    samples = ["--set", "evaluation.sets[0].samplesPerPrompt=4"]
    refused = CliRunner().invoke(cli, ["validate", str(written(folder, manifest)), *samples])
    assert refused.exit_code == EXIT_BAD_MANIFEST
    result = run(folder, manifest, *samples, "--checkpoint", str(folder / "nothing"))
    assert result.output.splitlines()[-1].startswith(f"{folder}/nothing is not a folder.")


def test_a_checkpoint_that_is_not_there_is_refused(folder: Path) -> None:
    result = run(folder, changed({"spec.evaluation": SETS}), "--checkpoint", str(folder / "nothing"))
    assert result.exit_code == EXIT_BAD_MANIFEST
    assert result.output.splitlines()[-1] == (
        f"{folder}/nothing is not a folder. Give the folder of a run (its --out), its checkpoint.path, or a record in"
        " that."
    )


def test_a_file_that_cannot_be_written_is_refused_before_any_work(folder: Path) -> None:
    out = folder / "prompts.jsonl" / "results.jsonl"
    result = run(folder, changed({"spec.evaluation": SETS}), "--checkpoint", str(folder), "--out", str(out))
    assert result.exit_code == EXIT_BAD_MANIFEST
    assert result.output.splitlines()[-1].startswith(f"--out: {out} cannot be written (")


def test_sets_are_chosen_by_name_in_the_order_of_the_manifest() -> None:
    job = RLJob.model_validate(changed({"spec.evaluation": SETS}))
    for names, expected in [((), ["held", "other"]), (("other", "held"), ["held", "other"]), (("other",), ["other"])]:
        evaluation = with_sets(job, names).spec.evaluation
        assert evaluation is not None
        assert [each.name for each in evaluation.sets] == expected


def test_engines_get_devices_as_if_there_was_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLJOB_DEVICES", "fake:4")
    roles = {"reference": {}, "actor": {"gpus": 4}, "rollout": {"replicas": 2, "gpus": 2, "shareDevicesWith": "actor"}}
    pods = engine_pods(RLJob.model_validate(changed({"spec.roles": roles})).spec.roles)
    assert [(pod.pod.role, pod.pod.replica) for pod in pods] == [(Role.ROLLOUT, 0), (Role.ROLLOUT, 1)]
    dealt = [name for pod in pods for name in pod.devices]
    assert [len(pod.devices) for pod in pods] == [2, 2]
    assert len(set(dealt)) == 4
    monkeypatch.setenv("RLJOB_DEVICES", "fake:3")
    with pytest.raises(EvaluationRefused, match=r"4 devices are wanted \(rollout 4 \(2 pods x 2\)\), but this machine"):
        engine_pods(RLJob.model_validate(changed({"spec.roles": roles})).spec.roles)


def test_a_set_is_a_table_with_a_row_for_each_source() -> None:
    metrics = {
        "eval/held/prompts": 2.0,
        "eval/held/mean@2": 0.25,
        "eval/held/a/b/prompts": 1.0,
        "eval/held/a/b/mean@2": 0.5,
        "eval/held2/mean@2": 1.0,
    }
    spec = RLJob.model_validate(changed({"spec.evaluation": SETS})).spec.evaluation
    assert spec is not None
    sets = [each for each in spec.sets if each.name == "held"]
    assert all(isinstance(each, EvaluationSetSpec) for each in sets)
    found = CheckpointEvaluation(folder="/run/4", version=4, samples=4, metrics=metrics)
    text = results_text(found, sets, 2.04)
    again = results_text(found.model_copy(update={"reward_retries": 3}), sets, 2.04)
    assert again.splitlines()[0] == "/run/4 (version 4): 4 samples in 2.0 s, 3 calls of rewards made again"
    assert text.splitlines() == [
        "/run/4 (version 4): 4 samples in 2.0 s",
        "",
        "set       mean@2  prompts",
        "held        0.25        2",
        "held/a/b     0.5        1",
    ]


def test_progress_names_the_start_then_counts() -> None:
    assert progress_text(ScoredSamples()) == "engines start"
    assert progress_text(ScoredSamples(scored=50, total=200)) == "scored 50 of 200 samples (25%)"
