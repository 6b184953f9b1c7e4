"""The places where a test may kill or hang the process that passes them, and that each is used by a test."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PRODUCT = ("crds", "operator", "workers", "cli", "compat")
FAILPOINTS = [
    "checkpoint.after_record",
    "checkpoint.before_record",
    "checkpoint.before_rename",
    "checkpoint.begun",
    "checkpoint.part_written",
    "collective.entered",
    "collective.section",
    "coordinator.before_settling",
    "coordinator.epoch_raised",
    "epoch.after_persist",
    "epoch.after_raise",
    "operator.after_write",
    "publish.after",
    "publish.before",
    "publish.part_staged",
    "queue.after_script",
    "queue.between_bytes_and_commit",
    "train.begun",
]


def texts(*folders: str) -> list[str]:
    here = Path(__file__).parent
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if path.parent != here]
    return [path.read_text() for path in files if ".venv" not in path.parts]


def test_all_of_them_are_there_and_no_other() -> None:
    calls = (re.findall(r'failpoint\("([a-z_.]+)"\)', text) for text in texts(*PRODUCT))
    assert sorted({name for names in calls for name in names}) == FAILPOINTS


@pytest.fixture(scope="module")
def tests() -> str:
    return "\n".join(texts("tests/integration", "tests/cluster", "tests/compat"))


@pytest.mark.parametrize("name", FAILPOINTS)
def test_each_is_used_by_a_test(tests: str, name: str) -> None:
    assert re.search(rf"\b{re.escape(name)}\b", tests) or f"{name.replace('.', '__')}=" in tests
