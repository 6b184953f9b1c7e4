"""Tests that need a GPU skip where there is none, in a sentence; `RLJOB_GPU_TESTS_ON_CPU=1` runs them all the same.

On the CPU they prove that they run, and nothing else: both sides of a comparison are the same then.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from rljob_workers.devices import own_device

WITHOUT_GPU = (
    "no CUDA device here: `make test-gpu` is for a machine with a GPU (RLJOB_GPU_TESTS_ON_CPU=1 runs them anyway)"
)
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available() or os.environ.get("RLJOB_GPU_TESTS_ON_CPU") == "1":
        return
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(reason=WITHOUT_GPU))


@pytest.fixture
def device() -> torch.device:
    return own_device()
