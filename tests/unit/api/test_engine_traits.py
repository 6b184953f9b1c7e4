"""The table of engines: every kind has a row, and no one outside a kind's own folder asks for it."""

import re
from pathlib import Path

import pytest

from rljob_api.engines import DEFAULT_ENGINE, ENGINES, PROGRAM_ENGINE, SIMULATED_ENGINE
from rljob_api.names import EngineKind
from rljob_workers.engines import BACKENDS

ROOT = Path(__file__).parents[3]
WHERE_A_KIND_IS_NAMED = ("crds/rljob_api/engines.py", "workers/rljob_workers/engines/")
ASKS = re.compile(r"EngineKind\.[A-Z]|kind (?:is|is not|==|!=|in) .*[\"'](?:Torch|SGLang|Sim)[\"']")


def asking(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if ASKS.search(line)]


def test_every_kind_has_a_row_and_a_backend() -> None:
    assert set(ENGINES) == set(EngineKind) == set(BACKENDS)


def test_kinds_that_are_known_by_a_trait() -> None:
    assert (DEFAULT_ENGINE, PROGRAM_ENGINE, SIMULATED_ENGINE) == (EngineKind.TORCH, EngineKind.SGLANG, EngineKind.SIM)


@pytest.mark.parametrize("folder", ["cli", "crds", "operator", "workers"])
def test_no_one_else_asks_for_a_kind(folder: str) -> None:
    found = {
        name: lines
        for file in sorted((ROOT / folder).rglob("*.py"))
        if not (name := str(file.relative_to(ROOT))).startswith(WHERE_A_KIND_IS_NAMED)
        if (lines := asking(file.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    ["if engine.kind is EngineKind.SGLANG:", 'if spec.engine.kind == "Sim":', "return kind in ('Torch', 'SGLang')"],
)
def test_it_would_be_seen(line: str) -> None:
    assert asking(f"pass\n    {line}\n") == [line]
