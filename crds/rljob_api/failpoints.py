"""Failpoints: named places where a test may kill the process that passes them. Nothing at all unless asked for.

`RLJOB_FAILPOINTS="checkpoint.after_record=2,publish.after=1"` with `RLJOB_FAILPOINTS_DIR=DIR` sends SIGKILL to the
process that passes a place for the n-th time (counted over all lives in DIR); each place fires once, its file
`NAME.fired` tells.
"""

import os
import signal
from pathlib import Path


def _parse(text: str) -> dict[str, int]:
    pairs = (item.split("=") for item in text.split(",") if item)
    return {name: int(count) for name, count in pairs}


_ARMED = _parse(os.environ.get("RLJOB_FAILPOINTS", ""))


def failpoint(name: str) -> None:
    """Kills this process here if the place is armed and its count is reached."""
    if name not in _ARMED:
        return
    folder = Path(os.environ["RLJOB_FAILPOINTS_DIR"])
    with (folder / f"{name}.hits").open("a+b") as hits:
        hits.write(b".")
        hits.flush()
        passed = hits.tell()
    if passed == _ARMED[name]:
        (folder / f"{name}.fired").touch()
        os.kill(os.getpid(), signal.SIGKILL)
