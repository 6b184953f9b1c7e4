"""What a user can have done wrong to the folder of a run. What goes wrong with the coordinator: `coordinator_link`."""


class RunRefused(ValueError):
    """The run cannot start: the folder is in use, of another manifest, or finished. The sentence says what to do."""
