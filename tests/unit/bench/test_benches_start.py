"""Benchmarks and other programs of the repository begin at all, where no one runs them whole with the tests."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
SECONDS = 600
"""Never measured: on a busy machine imports alone take minutes."""


@pytest.mark.parametrize(
    ("name", "option"),
    [
        pytest.param("restart", "--kills", id="restart"),
        pytest.param("cluster_restart", "--kills", id="cluster_restart"),
        pytest.param("operator_scale", "--jobs", id="operator_scale"),
        pytest.param("operator_scale", "--hostile", id="operator_scale, beside hostile coordinators"),
        pytest.param("engine", "--rounds", id="engine"),
        pytest.param("sglang", "--samples", id="sglang"),
        pytest.param("sglang_job", "--batch", id="sglang_job"),
        pytest.param("trl_grpo", "--steps", id="trl_grpo"),
        pytest.param("quickstart", "--rounds", id="quickstart"),
        pytest.param("coordinator.quickstart", "--help", id="the coordinator of the quickstart"),
    ],
)
def test_a_bench_states_how_it_is_called(
    name: str, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run here, where torch and transformers are imported already: that takes longer than the rest together."""
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_module(f"tests.bench.{name}", run_name="__main__", alter_sys=True)
    assert option in capsys.readouterr().out


def test_values_for_the_cluster_of_this_machine() -> None:
    done = subprocess.run(
        [ROOT / "scripts/cluster-values"], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert yaml.safe_load(done.stdout)["image"]["pullPolicy"] == "Never"
