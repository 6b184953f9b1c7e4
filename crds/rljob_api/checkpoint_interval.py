"""How many steps lie between two checkpoints where `checkpoint.everySteps` leaves that to the model's size.

Asked by the actor and by what shows a job. Pure but for `num_parameters`, which may read the heads of model files.

A checkpoint holds the policy, two moments in float32 and, where the policy is not float32, the weights in float32: 12
bytes for a parameter in float32, 14 in bfloat16. It is written while training goes on, so what it costs is the disk;
what it saves is steps that a restart trains again. At 1 GB/s, 6 GB are a tenth of a step that takes a minute:

    everySteps = ceil(bytes / 6 GB), at most 50

In bfloat16 a model of up to 428 million parameters is saved at every step, one of 4 billion at every 10th, and one of
21 billion or more at every 50th.
"""

from __future__ import annotations

from rljob_api.model_size import WEIGHT_BYTES, num_parameters
from rljob_api.spec import Dtype, RLJobSpec

BYTES_PER_STEP = 6 * 10**9
"""What may be written for each step: a tenth of a minute at 1 GB/s."""
MOST_STEPS = 50
"""However large the model is, no more steps are trained again after a restart."""
_MOMENT_BYTES = 8
_FLOAT32_BYTES = 4


def checkpoint_bytes(parameters: int, dtype: Dtype) -> int:
    """Bytes of one checkpoint of a model with so many parameters, over all ranks."""
    exact = 0 if dtype is Dtype.FLOAT32 else _FLOAT32_BYTES
    return parameters * (WEIGHT_BYTES[dtype] + _MOMENT_BYTES + exact)


def fitting_interval(parameters: int, dtype: Dtype) -> int:
    """Steps from one checkpoint to the next that fit the size of the model."""
    return min(MOST_STEPS, max(1, -(-checkpoint_bytes(parameters, dtype) // BYTES_PER_STEP)))


def checkpoint_interval(spec: RLJobSpec) -> int:
    """The job's: what it says, else what fits its model. ValueError where the model's files cannot be read."""
    if spec.checkpoint.every_steps is not None:
        return spec.checkpoint.every_steps
    return fitting_interval(num_parameters(spec.model), spec.model.dtype)
