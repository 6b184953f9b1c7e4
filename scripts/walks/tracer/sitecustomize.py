"""Writes each call between two files of RLJob that this process makes, with the frames above it, to $WALKS/PID.log.

Python imports this file at the start of every process that has its folder in PYTHONPATH. A line holds the time, the
thread's name and the frames from the callee upwards as FILE:QUALNAME. A pair of functions is written again after a
fifth of a second at the earliest: what is counted is whether a call is made within a time, and not how often.
"""

import os
import sys
import threading
import time
from types import CodeType, FrameType

_FOLDER = os.environ.get("WALKS", "")
_AGAIN_SECONDS = 0.2
_MAX_FRAMES = 40

_names: dict[str, str] = {}
_seen: set[tuple[CodeType | None, CodeType, int]] = set()
_state = {"pid": 0, "fd": -1, "bucket": 0}


def _file_of(code: CodeType) -> str:
    """The path from the package on, "" for code that is not RLJob's."""
    path = code.co_filename
    if path not in _names:
        begin = path.find("/rljob_")
        _names[path] = path[begin + 1 :] if begin >= 0 and "site-packages" not in path and "/tests/" not in path else ""
    return _names[path]


def _log() -> int:
    if _state["pid"] != os.getpid():  # also in a forked child
        path = f"{_FOLDER}/{os.getpid()}.log"
        _state.update(pid=os.getpid(), fd=os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
        _seen.clear()
        os.write(_state["fd"], ("#" + " ".join(sys.argv) + "\n").encode())
    return _state["fd"]


def _own(frame: FrameType | None) -> bool:
    return frame is not None and bool(_file_of(frame.f_code)) and frame.f_code.co_name != "<module>"


def _trace(frame: FrameType, event: str, _: object) -> None:
    if event != "call" or not _own(frame):
        return
    above = frame.f_back
    while above is not None and not _own(above):
        above = above.f_back
    callee = _file_of(frame.f_code)
    if above is not None and _file_of(above.f_code) == callee:
        return
    now = time.time()
    log = _log()
    if _state["bucket"] != int(now / _AGAIN_SECONDS):
        _state["bucket"] = int(now / _AGAIN_SECONDS)
        _seen.clear()
    key = (above.f_code if above is not None else None, frame.f_code, threading.get_ident())
    if key in _seen:
        return
    _seen.add(key)
    frames = [f"{callee}:{frame.f_code.co_qualname}"]
    while above is not None and len(frames) < _MAX_FRAMES:
        if _own(above):
            frames.append(f"{_file_of(above.f_code)}:{above.f_code.co_qualname}")
        above = above.f_back
    os.write(log, f"{now:.4f}\t{threading.current_thread().name}\t{chr(9).join(frames)}\n".encode())


if _FOLDER:
    threading.setprofile(_trace)
    sys.setprofile(_trace)
