"""What a user can have done wrong to the folder of a run. Errors of the coordinator: `coordinator_client.link`."""


class RunRefused(ValueError):
    """The run cannot start: the folder is in use, of another manifest, or finished. The sentence names the cure."""
