"""Failpoints: named places where a test may kill the process that passes them, or hang it. Nothing unless asked for.

`RLJOB_FAILPOINTS="checkpoint.after_record=2,publish.after=1"` with `RLJOB_FAILPOINTS_DIR=DIR` sends SIGKILL to the
process that passes a place for the n-th time (counted over all incarnations in DIR); each place fires once, its file
`NAME.fired` records. `NAME=hang:2` keeps the thread that passes it there for ever instead.
"""

import os
import signal
import time
from pathlib import Path

_HANG = "hang:"
_HANG_SECONDS = 3600.0


def _parse(text: str) -> dict[str, int]:
    pairs = (item.split("=") for item in text.split(",") if item)
    return {name: int(count.removeprefix(_HANG)) for name, count in pairs}


_GIVEN = os.environ.get("RLJOB_FAILPOINTS", "")
_ARMED = _parse(_GIVEN)


def failpoint(name: str) -> None:
    """Kills this process here, or hangs, if the place is armed and its count is reached."""
    if name not in _ARMED:
        return
    folder = Path(os.environ["RLJOB_FAILPOINTS_DIR"])
    with (folder / f"{name}.hits").open("a+b") as hits:
        hits.write(b".")
        hits.flush()
        passed = hits.tell()
    if passed == _ARMED[name]:
        (folder / f"{name}.fired").touch()
        if f"{name}={_HANG}" in _GIVEN:
            time.sleep(_HANG_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)
