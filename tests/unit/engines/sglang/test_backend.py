"""How a SGLang server is started: forked without GPUs, a program of its own with them."""

import sys
from dataclasses import replace
from pathlib import Path

from rljob_api.spec.model import Dtype
from rljob_workers.engines.backend import EngineSettings, EngineSite, Exec, Fork
from rljob_workers.engines.sglang.sglang_backend import SGLANG
from tests.integration.engines.engine_process import tiny_model

SITE = EngineSite(port=30001, devices=(), folder=Path("/dev/shm/engine"))
SETTINGS = EngineSettings(tiny_model(), Dtype.FLOAT32, threads=1, args=("--mem-fraction-static", "0.8"))


def test_without_devices_it_is_forked() -> None:
    assert isinstance(SGLANG.command(SETTINGS, SITE), Fork)


def test_on_devices_that_are_not_there_it_is_forked_too() -> None:
    assert isinstance(SGLANG.command(replace(SETTINGS, tensor_parallel=2), replace(SITE, devices=("fake-0",))), Fork)


def test_on_gpus_it_is_a_program_with_the_job_s_flags_last() -> None:
    command = SGLANG.command(replace(SETTINGS, tensor_parallel=2), replace(SITE, devices=("0", "1")))
    assert isinstance(command, Exec)
    assert command.arguments[:3] == (sys.executable, "-m", "sglang.launch_server")
    assert {"--port=30001", "--tensor-parallel-size=2", "--model-path=/dev/shm/engine/model"} < set(command.arguments)
    assert command.arguments[-2:] == ("--mem-fraction-static", "0.8")
    assert command.environment == {"TMPDIR": "/dev/shm/engine"}


def test_another_environment_s_interpreter_runs_it() -> None:
    command = SGLANG.command(replace(SETTINGS, python="/opt/sglang/bin/python"), replace(SITE, devices=("0",)))
    assert isinstance(command, Exec)
    assert command.arguments[0] == "/opt/sglang/bin/python"


def test_before_the_program_begins_its_model_is_described_without_weights(tmp_path: Path) -> None:
    command = SGLANG.command(SETTINGS, EngineSite(30001, ("0",), tmp_path))
    assert isinstance(command, Exec)
    command.prepare()
    found = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"config.json", "tokenizer.json", "rljob-tensors.json"} <= found
    assert not any(name.endswith(".safetensors") for name in found)


def test_a_pause_is_no_sign_of_death() -> None:
    assert SGLANG.ready.path == "/model_info"
    assert SGLANG.ready.accepts(200)
    assert not SGLANG.ready.accepts(503)
