"""Rules between a teacher, the model of `roles.reference.modelPath`, and the rest of the job.

For the spec, which puts all rules between parts together. What its folder must hold is checked where it can be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_api.rule import Rule
from rljob_api.spec.advantages import OF_A_TEACHER
from rljob_api.spec.trained_roles import ENGINE_IS_SIM

if TYPE_CHECKING:
    from rljob_api.spec import RLJobSpec

_HAS_TEACHER = "(has(self.roles.reference) && has(self.roles.reference.modelPath))"


def has_teacher(job: RLJobSpec) -> bool:
    """Whether the role reference has a model of its own."""
    return job.roles.reference is not None and job.roles.reference.model_path is not None


TEACHER: tuple[Rule, ...] = (
    Rule(
        field="algorithm.advantage",
        # Without a teacher it would be pulled to its own version 0, from which it begins: nothing would be learnt.
        holds=lambda job: has_teacher(job) or not job.algorithm.advantage_traits.needs_reference,
        sentence="{algorithm.advantage} needs a teacher, and roles.reference.modelPath names none. Give the folder of "
        "one, or choose another advantage.",
        cel=f"{_HAS_TEACHER} || !(self.algorithm.advantage in {list(OF_A_TEACHER)})",
    ),
    Rule(
        field="training.refUpdateInterval",
        holds=lambda job: job.training.ref_update_interval is None or not has_teacher(job),
        sentence="{training.refUpdateInterval} makes versions of the policy the reference, which is the model in "
        "roles.reference.modelPath. Remove one of the two.",
        cel=f"!has(self.training.refUpdateInterval) || !{_HAS_TEACHER}",
    ),
    Rule(
        field="roles.reference.modelPath",
        holds=lambda job: not has_teacher(job) or job.trainer_backend != "Sim",
        sentence="{roles.reference.modelPath} is not read by a simulated job. Remove it.",
        cel=f"!{_HAS_TEACHER} || !{ENGINE_IS_SIM}",
    ),
)
