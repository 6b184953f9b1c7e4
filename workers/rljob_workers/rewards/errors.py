"""What scoring raises.

RewardError
├── RewardFailed    the user's function raised; its exception is the cause
├── RewardRefused   it returned something that is not one finite number per answer
└── RewardTimeout   it did not return within rollout.reward.custom.timeoutSeconds

A function that cannot be loaded at all is a ValueError: the manifest is wrong.
"""


class RewardError(Exception):
    """Base of everything that scoring raises; the message names function and prompt."""


class RewardFailed(RewardError):
    """The user's function raised."""


class RewardRefused(RewardError):
    """The user's function returned what cannot be a reward."""


class RewardTimeout(RewardError):
    """The user's function took too long."""
