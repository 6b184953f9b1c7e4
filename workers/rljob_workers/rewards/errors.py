"""What scoring raises, or gives in the place of a score.

RewardError
├── RewardFailed    the user's function raised; its exception is the cause
├── RewardMissing   it returned None for an answer
├── RewardTimeout   it did not return within rollout.reward.custom.timeoutSeconds
└── RewardRefused   another try would not help: it returned what is no reward, or said itself that it never can

The first three are failures of a moment: `scoring` bears them, and makes a ValueError of the last, the user's to cure.
A function that cannot be loaded at all is a ValueError, too: the manifest is wrong.
"""


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
