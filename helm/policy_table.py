"""`python -m helm.policy_table FILE`: writes what the chart's admission policy and the operator's build have in common.

The chart's templates read the file: the operator's own containers, and every place by which a job can name an object.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from rljob_operator.build.named_objects import OWN_NAMES, POD_PLACES, SPEC_PLACES, Place
from rljob_operator.build.parts import INFRASTRUCTURE_CONTAINERS, ROLE_CONTAINERS

_HEAD = "# Written by `make policy-table` from operator/rljob_operator/build/named_objects.py and build/parts.py.\n"


def policy_table() -> str:
    """The file: YAML with a line for each place."""
    made = [json.dumps({"kind": kind, "before": before, "after": after}) for kind, before, after in OWN_NAMES]
    return "".join(
        [
            _HEAD,
            f"roleContainers: {json.dumps(ROLE_CONTAINERS)}\n",
            f"infrastructureContainers: {json.dumps(INFRASTRUCTURE_CONTAINERS)}\n",
            _list("ownNames", made),
            _list("specPlaces", map(_row, SPEC_PLACES)),
            _list("podPlaces", map(_row, POD_PLACES)),
        ]
    )


def _list(name: str, rows: Iterable[str]) -> str:
    return f"{name}:\n" + "".join(f"- {row}\n" for row in rows)


def _row(place: Place) -> str:
    return json.dumps({"kind": place.kind, "access": place.access, "path": place.path})


def main() -> None:
    """Writes it."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m helm.policy_table FILE")
    Path(sys.argv[1]).write_text(policy_table())


if __name__ == "__main__":
    main()
