"""Kinds of trainers are rows of two tables: no other file asks which one a job has."""

from __future__ import annotations

import re
from pathlib import Path

from rljob_api.spec.roles import BACKENDS, TrainerBackend
from rljob_workers.trainers import TRAINERS

ROOT = Path(__file__).parents[3]

NAMED_BY = {
    "crds/rljob_api/spec/roles.py",  # the table of what is known without torch
    "crds/rljob_api/spec/__init__.py",  # which one a job has that does not say
    "crds/rljob_api/wire/processes.py",  # what a parent preloads that is not asked
    "workers/rljob_workers/launcher/parent.py",  # the same
    "workers/rljob_workers/trainers/flat_backend.py",
    "workers/rljob_workers/trainers/sim_backend.py",
    "workers/rljob_workers/trainers/fsdp/fsdp_backend.py",
    "workers/rljob_workers/trainers/megatron/megatron_backend.py",
}


def test_every_kind_has_a_row_in_both_tables() -> None:
    assert set(TRAINERS) == set(BACKENDS) == set(TrainerBackend)
    assert all(backend.kind is kind for kind, backend in TRAINERS.items())


def test_no_other_file_names_a_kind() -> None:
    files = [path for room in ("crds", "cli", "operator", "workers") for path in (ROOT / room).rglob("*.py")]
    found = {
        str(path.relative_to(ROOT)) for path in files if re.search(r"\bTrainerBackend\.[A-Z]", path.read_text("utf-8"))
    }
    assert found == NAMED_BY
