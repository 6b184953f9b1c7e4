"""What scoring raises, or gives in the place of a score.

RewardError
├── RewardFailed    the user's function raised; its exception is the cause
├── RewardMissing   it returned None for an answer
├── RewardTimeout   it did not return within rollout.reward.custom.timeoutSeconds
└── RewardRefused   another try would not help: it returned what is no reward, or said itself that it never can

The first three are failures of a moment: `scoring` bears them, and makes a ValueError of the last, the user's to cure.
A function that cannot be loaded at all is a ValueError, too: the manifest is wrong.
"""

import traceback
from collections.abc import Iterator
from types import TracebackType

_OURS = "rljob_workers."


class RewardError(Exception):
    """Base of everything that scoring raises; the message names function and prompt."""


class RewardFailed(RewardError):
    """The user's function raised."""


class RewardMissing(RewardError):
    """The user's function has no score for an answer."""


class RewardTimeout(RewardError):
    """The user's function took too long."""


class RewardRefused(RewardError):
    """The user's function cannot work."""


def place_of(error: BaseException) -> str:
    """File and line in the user's code that raised, as ` (FILE, line N)`; empty where there is none.

    Of its frames the innermost that is no library's.
    """
    frames = [(frame.tb_frame.f_code.co_filename, frame.tb_lineno) for frame in _users(error)]
    own = [frame for frame in frames if "site-packages" not in frame[0] and not frame[0].startswith("<")]
    library = traceback.__file__.rpartition("/")[0]
    found = [frame for frame in own if not frame[0].startswith(f"{library}/")] or frames[:1]
    return f" ({found[-1][0]}, line {found[-1][1]})" if found else ""


def traceback_of(error: BaseException) -> str:
    """The traceback of what a user's code raised, from where our code called it."""
    first = next(_users(error), None)
    return "".join(traceback.format_exception(type(error), error, first)).rstrip()


def _users(error: BaseException) -> Iterator[TracebackType]:
    """The frames below our call and below the machinery of imports."""
    trace, is_below = error.__traceback__, False
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        is_below = is_below or not name.startswith((_OURS, "importlib", "_frozen_importlib"))
        if is_below:
            yield trace
        trace = trace.tb_next
