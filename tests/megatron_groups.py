"""Models of Megatron in one process, one after the other: a job has one in each, and its groups are the process's."""

import warnings

from torch import distributed


def end_megatron_model() -> None:
    """Called between two models, and before the first one too if that is simpler. What was there is used no more.

    Its groups end with it: Megatron only forgets them, and each has a thread that wakes up a hundred times a second.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is not installed beside it
        from megatron.core import parallel_state
    made = {group for group in vars(parallel_state).values() if isinstance(group, distributed.ProcessGroup)}
    parallel_state.destroy_model_parallel()
    if made:
        distributed.barrier()  # the others are done with them, too
    for group in made - {distributed.group.WORLD}:
        distributed.destroy_process_group(group)
