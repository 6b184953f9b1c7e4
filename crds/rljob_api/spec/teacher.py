"""Rules between a teacher, the model of `roles.reference.modelPath`, and the rest of the job.

For the spec, which puts all rules between parts together. What its folder must hold is checked where it can be read.
"""

from __future__ import annotations

from rljob_api.rule import Rule
from rljob_api.spec.advantages import OF_A_TEACHER
from rljob_api.spec.trained_roles import ENGINE_IS_SIM

_HAS_TEACHER = "(has(self.roles.reference) && has(self.roles.reference.modelPath))"


TEACHER: tuple[Rule, ...] = (
    Rule(
        field="algorithm.advantage",
        # Without a teacher it would be pulled to its own version 0, from which it begins: nothing would be learnt.
        holds=lambda job: job.has_teacher or not job.algorithm.advantage_traits.needs_reference,
        sentence="{algorithm.advantage} needs a teacher, and roles.reference.modelPath names none. Give the folder of "
        "one, or choose another advantage.",
        cel=f"{_HAS_TEACHER} || !(self.algorithm.advantage in {list(OF_A_TEACHER)})",
    ),
    Rule(
        field="training.refUpdateInterval",
        holds=lambda job: job.training.ref_update_interval is None or not job.has_teacher,
        sentence="{training.refUpdateInterval} makes versions of the policy the reference, which is the model in "
        "roles.reference.modelPath. Remove one of the two.",
        cel=f"!has(self.training.refUpdateInterval) || !{_HAS_TEACHER}",
    ),
    Rule(
        field="roles.reference.modelPath",
        holds=lambda job: not job.has_teacher or job.trainer_backend != "Sim",
        sentence="{roles.reference.modelPath} is not read by a simulated job. Remove it.",
        cel=f"!{_HAS_TEACHER} || !{ENGINE_IS_SIM}",
    ),
)
