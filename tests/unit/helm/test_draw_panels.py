"""The script that draws panels for a page, with a Prometheus that has no value of a figure."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts/draw_panels.py"
FIGURE = {
    "type": "stat",
    "title": "Reward",
    "description": "Of the last step.",
    "gridPos": {"x": 0, "y": 0, "w": 4, "h": 4},
    "fieldConfig": {"defaults": {"unit": "none"}},
    "options": {"textMode": "value"},
    "targets": [{"expr": "rljob_reward", "instant": True, "legendFormat": "{{job}}"}],
}


class Reader:
    """Answers every query with these series."""

    start, end = 0.0, 60.0

    def __init__(self, *series: list[tuple[float, float]]) -> None:
        self._series = series

    def ask(self, expression: str, *, over_time: bool) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        return [({"job": f"job-{number}"}, points) for number, points in enumerate(self._series)]


LINES = {**FIGURE, "type": "timeseries", "fieldConfig": {"defaults": {"unit": "none", "noValue": "No critic"}}}


def drawn(reader: Reader, panel: dict[str, Any] = FIGURE) -> str:
    spec = importlib.util.spec_from_file_location("draw_panels", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return "\n".join(module.draw({"panels": [panel], "annotations": {}}, [], reader))


@pytest.mark.parametrize(
    ("series", "text"),
    [
        pytest.param([[(60.0, 0.5)], [(60.0, 0.75)]], ">0.5, 0.75<", id="two values"),
        pytest.param([[], [(60.0, 0.75)]], ">0.75<", id="one whose value is not a number"),
        pytest.param([[]], ">no data<", id="none at all"),
    ],
)
def test_a_series_without_a_value_is_left_out_of_a_figure(series: list[list[tuple[float, float]]], text: str) -> None:
    assert text in drawn(Reader(*series))


def test_a_panel_states_that_there_is_no_series_only_where_there_is_none() -> None:
    assert ">No critic<" in drawn(Reader(), LINES)
    assert ">No critic<" not in drawn(Reader([(0.0, 0.5), (60.0, 0.75)]), LINES)
