"""docs/queue.md names every key, function, metric and test that it speaks of, and nothing that is not there.

docs/protocols/queue.md lists the calls of a rank and of the coordinator, and each of them is there.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rljob_workers.dcs.coordinator.queue_room import queue_samples
from rljob_workers.dcs.membership.counters import COUNTERS
from rljob_workers.transfer_queue.admin import QueueAdmin
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.control.library import library
from rljob_workers.transfer_queue.curriculum_rows import CurriculumRows
from rljob_workers.transfer_queue.evaluation_samples import EvaluationSamples
from rljob_workers.transfer_queue.inspection import QueueInspection
from rljob_workers.transfer_queue.peeking import QueuePeeking
from rljob_workers.transfer_queue.saved_partials import SavedPartials
from rljob_workers.transfer_queue.units import GENERATION_KEY
from rljob_workers.transfer_queue.upkeep import StorageUpkeep, Sweeper
from tests.integration.transfer_queue.world import make_shape
from tests.unit.transfer_queue.test_draining import lease, make_stats

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/queue.md").read_text()
CONTRACTS = (ROOT / "docs/protocols/queue.md").read_text()
SCRIPTS = library(make_shape()).text

_SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_CALL = re.compile(r"(?:^ {4}|[,;] )(?:(\w+)\.)?(\w+)\(", re.MULTILINE)
_PARTS = {
    "partials": SavedPartials,
    "evaluation": EvaluationSamples,
    "curriculum": CurriculumRows,
    "upkeep": StorageUpkeep,
    "sweeper": Sweeper,
    "inspection": QueueInspection,
    "peeking": QueuePeeking,
}
"""Of a `TransferQueueClient`, and of a `QueueAdmin`."""


def section(title: str) -> str:
    sections: dict[str, str] = dict(_SECTION.findall(PAGE))
    return sections[title]


def named(title: str, pattern: str) -> set[str]:
    """What stands as code in a section and looks like this."""
    return {code for code in _CODE.findall(section(title)) if re.fullmatch(pattern, code)}


def test_every_key_is_named_and_no_other() -> None:
    of_queue = set(re.findall(r"'(q:\w+:?)'", SCRIPTS))
    of_partition = {f"p:R:{part}" for part in re.findall(r"\bkey\([\w.]+, '(\w+:?)'", SCRIPTS)}
    page = {re.sub(r":[A-Z]{2,}$", ":", key) for key in named("Keys of the control Redis", r"[qp]:[\w:]+")}
    assert page == of_queue | of_partition


def test_keys_are_made_in_no_other_way() -> None:
    """What the test above cannot see."""
    assert set(re.findall(r"'(\w):'", SCRIPTS)) - {"f", "s", "q", "b"} == {"p", "n"}
    assert f"`{GENERATION_KEY.decode()}`" in section("Keys of the control Redis")


def test_every_function_is_named_and_no_other() -> None:
    registered = set(re.findall(r"^(?:rank_call|admin_call|read_call)\('(\w+)'", SCRIPTS, re.MULTILINE))
    registered |= set(re.findall(r"^redis\.register_function\('(\w+)'", SCRIPTS, re.MULTILINE))
    rows = section("Functions of the control Redis").split("| called by | functions |")[1]
    page = {code for line in rows.splitlines() if line.startswith("|") for code in _CODE.findall(line)}
    assert page == registered


def test_every_metric_is_named_and_no_other() -> None:
    unit = {
        "unit": 0,
        "generation": 1,
        "answers": True,
        "usedBytes": 1,
        "limitBytes": 1,
        "highWaterBytes": 1,
        "keys": 1,
        "receivedBytes": 1,
        "sentBytes": 1,
    }
    stats = make_stats(leases=(lease("actor_log_probs", "actor_fwd-0.0"),))
    stats = type(stats).model_validate({**stats.model_dump(), "units": [unit]})
    made = {name for name, _, _ in queue_samples(stats)}
    labels = {"job", "role", "replica", "rank", "task", "state", "reason", "unit", "kind", "rljob_queue_", "/metrics"}
    page = {name for name in named("Metrics", r"[\w/]+") if name not in labels}
    ranks = {name for name in page if name.startswith("rljob_rank_")}
    assert {f"rljob_queue_{name}" for name in page - ranks} == made
    assert ranks == {f"rljob_rank_{name}_total" for name in COUNTERS if name.startswith("queue_")}


@pytest.mark.parametrize("test", sorted(set(re.findall(r"`(test_\w+\.py::test_\w+)`", PAGE))))
def test_tests_on_the_page_are_there(test: str) -> None:
    file, name = test.split("::")
    assert f"def {name}(" in (ROOT / "tests/integration/transfer_queue" / file).read_text()


@pytest.mark.parametrize(
    ("title", "owner"), [("The client", TransferQueueClient), ("The coordinator's side", QueueAdmin)]
)
def test_calls_that_the_contracts_list_are_there(title: str, owner: type) -> None:
    sections: dict[str, str] = dict(_SECTION.findall(CONTRACTS))
    calls = _CALL.findall(sections[title])
    assert len(calls) >= 10
    assert [call for call in calls if not hasattr(_PARTS[call[0]] if call[0] else owner, call[1])] == []
