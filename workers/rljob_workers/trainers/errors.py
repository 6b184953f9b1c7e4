"""What a trainer raises.

    TrainerError
    └── GroupError                  the data-parallel group cannot go on
        ├── GroupNotComplete        not all ranks joined in time
        └── GroupBroken             a rank is gone or did not answer in time

A checkpoint or configuration that does not fit is a `ValueError`: the user's to cure.
"""


class TrainerError(Exception):
    """Anything below."""


class GroupError(TrainerError):
    """The data-parallel group cannot go on."""


class GroupNotComplete(GroupError):
    """Not all ranks joined in time."""


class GroupBroken(GroupError):
    """A rank is gone or did not answer in time."""
