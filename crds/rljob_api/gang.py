"""How many pods of each role a job cannot be without: those that a gang is placed with.

Pure. Read by the operator's core, which begins with so many, and by the build of the PodGroup.
"""

from collections.abc import Mapping

from rljob_api.names import Role
from rljob_api.role_traits import SCALED_ROLE
from rljob_api.spec import RLJobSpec


def required_replicas(spec: RLJobSpec) -> Mapping[Role, int]:
    """Role -> pods that the job begins with. Without a gang that is all of them."""
    replicas, least = spec.roles.replicas(), spec.scheduling.min_rollouts
    if spec.scheduling.gang is None or least is None:
        return replicas
    return {role: min(count, least) if role is SCALED_ROLE else count for role, count in replicas.items()}
