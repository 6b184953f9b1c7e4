"""How much memory weights on their way take in the pods of a job, by formula. Pure.

For what makes pods, and for what starts processes on one machine.
"""

from rljob_api.names import Role, Stream
from rljob_api.roles import REFERENCE_ROLE, TRAITS
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import BACKENDS

STAGED_COPIES = 3
"""Copies of weights that follow the policy, in a pod's memory: the newest, the one before it, which may still be read,
and the next one while it comes."""


_FIRST_BYTES = 4
"""Bytes of a parameter of version 0 of a model that model.config makes, float32: every rank that trains reads it."""


_SMALL_FILES = 1 << 20
"""Sockets, configurations and tokenizers beside the weights."""


def staged_bytes(spec: RLJobSpec, role: Role, parameters: int) -> int:
    """Bytes of weights on their way that one pod of a role keeps in memory; `parameters` are the policy's."""
    traits, model = TRAITS[role], spec.model
    if not BACKENDS[spec.trainer_backend].computes:
        return _SMALL_FILES
    followed = parameters * model.dtype.num_bytes if traits.stream is not None else 0
    copies = STAGED_COPIES if traits.stream is Stream.POLICY or spec.training.ref_update_interval is not None else 1
    if role is REFERENCE_ROLE and spec.roles.reference is not None and spec.roles.reference.model_path is not None:
        followed = 0  # a teacher is read from its folder
    first = 0
    if traits.saves and model.config is not None:
        first = parameters * _FIRST_BYTES * spec.roles.topology(role).ranks_per_pod
    return followed * copies + first + _SMALL_FILES


def staged_bytes_of_all(spec: RLJobSpec, parameters: int) -> int:
    """Bytes that all pods of a job keep so, where they share one memory."""
    present = spec.roles.present()
    return sum(staged_bytes(spec, role, parameters) * each.most_replicas for role, each in present.items())
