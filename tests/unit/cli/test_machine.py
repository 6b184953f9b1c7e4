"""What `rljob run` says of a server, or a trainer, that this machine lacks."""

import sys
from typing import Any

import pytest

from rljob_api.spec import RLJobSpec
from rljob_api.spec.engine import EngineSpec
from rljob_cli.checks import machine
from rljob_cli.checks.machine import engine_problem, python_problem, tracker_problem, trainer_problem
from tests.unit.api.manifests import changed


def test_what_is_there_is_no_problem() -> None:
    assert engine_problem(EngineSpec()) is None
    assert engine_problem(EngineSpec.model_validate({"kind": "SGLang", "python": sys.executable})) is None


def test_a_server_that_is_not_installed_is_named_with_the_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert engine_problem(EngineSpec.model_validate({"kind": "SGLang"})) == (
        "spec.roles.rollout.engine.kind: SGLang is not installed here. Install it beside rljob, give the interpreter of"
        " an environment that has it as engine.python, or set kind to Torch."
    )


@pytest.mark.parametrize(
    ("roles", "role"),
    [
        pytest.param({"actor": {"backend": "Megatron"}}, "actor", id="the actor's"),
        pytest.param({"reference": {"backend": "Megatron"}}, "reference", id="a reference's"),
        pytest.param({"actor": {"backend": "Fsdp"}}, None, id="what all workers have"),
    ],
)
def test_a_trainer_that_is_not_installed_is_named(
    roles: dict[str, Any], role: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = RLJobSpec.model_validate(changed({f"spec.roles.{name}": given for name, given in roles.items()})["spec"])
    assert trainer_problem(spec) is None, "every install here has it"
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert trainer_problem(spec) == (
        role
        and f"spec.roles.{role}.backend: Megatron is not installed here. Install it: pip install 'rljob[megatron]', or"
        " set backend to Fsdp."
    )


def test_a_tracker_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RLJobSpec.model_validate(changed({"spec.telemetry": {"reportTo": ["tensorboard", "wandb"]}})["spec"])
    monkeypatch.setattr(machine, "find_spec", lambda name: None if name == "wandb" else machine)
    assert tracker_problem(spec) == (
        f"spec.telemetry.reportTo: wandb is not installed in {sys.prefix}. Install it: pip install 'rljob[wandb]', or"
        " leave it out."
    )
    monkeypatch.setattr(machine, "find_spec", lambda name: machine)
    assert tracker_problem(spec) is None


def test_an_interpreter_that_is_not_there_is_named() -> None:
    assert python_problem(EngineSpec.model_validate({"kind": "SGLang", "python": "/nowhere/python"})) == (
        "spec.roles.rollout.engine.python: /nowhere/python is no program of this machine. Give the interpreter of an"
        " environment that has SGLang, or remove python."
    )
