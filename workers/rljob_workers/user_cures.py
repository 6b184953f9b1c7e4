"""Cures for what Python raises in users' functions since they are called in threads. Pure; a sentence for each kind."""

from __future__ import annotations

_SIGNALS = (
    "It is called in a thread, an async function too, where no signal and no alarm comes. Give what may take too long"
    " to a process with a time limit, such as subprocess.run(..., timeout=5); for mathematics take"
    " rollout.reward.mathVerify."
)


_NO_LOOP = "A plain function is called in a thread without an event loop: use asyncio.run, or make the function async."


_RUNNING_LOOP = "An async function runs on an event loop already: await what it calls, or make it a plain function."


_PICKLED = (
    "Another process gets functions by their names: define what it runs at the top level of a module, or open the pool"
    ' with the context multiprocessing.get_context("fork") where nothing else runs yet, when the module is imported.'
)


_DAEMONS = (
    "A process of a pool starts none: what a module starts when it is imported, a process that imports it again would"
    " start, too. Start it in the first call, or guard it by multiprocessing.parent_process() is None."
)


_CURES: tuple[tuple[str, str], ...] = (
    ("signal only works in main thread", _SIGNALS),
    ("no current event loop in thread", _NO_LOOP),
    ("asyncio.run() cannot be called from a running event loop", _RUNNING_LOOP),
    ("This event loop is already running", _RUNNING_LOOP),
    ("Cannot run the event loop while another loop is running", _RUNNING_LOOP),
    ("t pickle ", _PICKLED),
    ("not the same object as", _PICKLED),
    ("daemonic processes are not allowed to have children", _DAEMONS),
)
"""A part of the exception's text, which is all that tells them from others of their types."""


def with_cure(error: BaseException) -> str:
    """The text of an exception, and behind it what to do, where that is known."""
    text = str(error)
    cure = next((cure for part, cure in _CURES if part in text), None)
    return text if cure is None else f"{text.rstrip('.')}. {cure}"
