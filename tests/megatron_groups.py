"""Models of Megatron in one process, one after the other: a job has one in each, and its groups are the process's."""

import warnings


def end_megatron_model() -> None:
    """Called between two models, and before the first one too if that is simpler. What was there is used no more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is not installed beside it
        from megatron.core import parallel_state
    parallel_state.destroy_model_parallel()
