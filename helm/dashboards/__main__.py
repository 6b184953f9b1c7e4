"""`python -m helm.dashboards FOLDER`: writes the JSON of each dashboard."""

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from helm.dashboards import fleet, job, operator
from helm.dashboards.panels import dashboard

BOARDS = {"fleet": fleet.BOARD, "job": job.BOARD, "operator": operator.BOARD}


def main() -> None:
    """One file for each, and no other stays."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m helm.dashboards FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for left in {path.stem for path in folder.glob("*.json")} - BOARDS.keys():
        (folder / f"{left}.json").unlink()
    for name, board in BOARDS.items():
        text = json.dumps(dashboard(board), cls=JSONEncoder, indent=1, sort_keys=True)
        (folder / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
