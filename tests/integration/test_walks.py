"""The budget of four ways through the code: files that a reader passes, and calls that lead from one to another.

`scripts/count-walks --pairs WAY` says which they are. Lower a figure when a way has become shorter; raise none without
a reason in the commit. A way differs by some calls from run to run, more on a busy machine: the budget has room for it.
"""

import json
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts/count-walks"
BUDGET = {
    "sample": {"files": 88, "calls": 325},
    "weight": {"files": 51, "calls": 125},
    "reference": {"files": 132, "calls": 560},
    "actor": {"files": 158, "calls": 690},
}


def test_no_way_has_become_longer() -> None:
    counted = subprocess.run([SCRIPT, "--output", "json"], stdout=subprocess.PIPE, check=True, text=True)
    found = json.loads(counted.stdout)
    assert found.keys() == BUDGET.keys()
    beyond = {
        f"{way}: {count} {unit}, {BUDGET[way][unit]} at most"
        for way, figures in found.items()
        for unit, count in figures.items()
        if count > BUDGET[way][unit]
    }
    assert beyond == set()
