"""What docs/coming-from.md calls options of TRL are options of the TRL that is installed with the extra bench."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs/coming-from.md"
ROW = re.compile(r"^\| `[^|]+` \|([^|]*)\|[^|]*\|$", re.MULTILINE)
pytestmark = pytest.mark.long


def named() -> set[str]:
    """In the second column of the tables before slime's, without values: `loss_type="dapo"` is loss_type."""
    cells = ROW.findall(PAGE.read_text().partition("\n## slime")[0])
    names = (name for cell in cells for name in re.findall(r"`([^`]+)`", cell))
    return {name.partition("=")[0] for name in names}


def test_the_page_names_options_of_trl() -> None:
    assert len(named()) > 40


def test_every_option_that_the_page_names_is_in_trl() -> None:
    trl = pytest.importorskip("trl", reason="the extra bench is not installed: scripts/install bench")
    from trl import rewards

    options = {field.name for config in (trl.GRPOConfig, trl.RLOOConfig) for field in fields(config)}
    parameters = set(inspect.signature(trl.GRPOTrainer.__init__).parameters)
    columns_and_keys = {"prompt", "dtype"}  # of a dataset; of model_init_kwargs, which are those of transformers
    known = options | parameters | set(dir(rewards)) | set(dir(trl)) | columns_and_keys
    assert named() - known == set()
    deprecated = {field.name for field in fields(trl.GRPOConfig) if "eprecated" in str(field.metadata.get("help"))}
    assert named() & deprecated == set()
