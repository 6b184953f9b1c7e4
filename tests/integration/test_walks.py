"""The budget of four ways through the code: files that a reader passes, and calls that lead from one to another.

`scripts/count-walks --pairs WAY` says which they are. `tests/ratchets.toml` has the budget: lower a figure when a way
has become shorter; raise none without a reason in the commit. A way differs by some calls from run to run, more on a
busy machine: the budget has room for it.
"""

import json
import subprocess
from pathlib import Path

from tests.ratchets.bounds import parse

ROOT = Path(__file__).parents[2]


def test_no_way_has_become_longer() -> None:
    counted = subprocess.run(
        [ROOT / "scripts/count-walks", "--output", "json"], stdout=subprocess.PIPE, check=True, text=True
    )
    found = json.loads(counted.stdout)
    budget = parse((ROOT / "tests/ratchets.toml").read_text()).ways
    assert found.keys() == budget.keys()
    beyond = {
        f"{way}: {count} {unit}, {budget[way][unit]} at most"
        for way, figures in found.items()
        for unit, count in figures.items()
        if count > budget[way][unit]
    }
    assert beyond == set()
