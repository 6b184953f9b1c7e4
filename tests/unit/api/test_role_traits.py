"""The table of roles: every role has a row, the spec agrees with it, and no one else asks for a role by its name."""

import re
from pathlib import Path

import pytest

from rljob_api.names import Role, Scope, Stream
from rljob_api.roles import LEADING_ROLE, SAVING_ROLES, SCALED_ROLE, TICKET_ROLE, TRAITS, Grouping, field_name
from rljob_api.spec import RLJobSpec
from rljob_api.spec.restart import RestartTableSpec
from rljob_api.spec.roles import RolesSpec
from rljob_workers.pipeline import queue_shape
from tests.unit.api.manifests import changed

ROOT = Path(__file__).parents[3]
WHERE_A_ROLE_WORKS = ("crds/rljob_api/roles.py", "workers/rljob_workers/roles.py")


def test_every_role_has_a_row_and_a_field() -> None:
    assert set(TRAITS) == set(Role)
    assert {field.alias for field in RolesSpec.model_fields.values()} == {field_name(role) for role in Role}


def test_the_texts_of_the_table() -> None:
    assert (LEADING_ROLE, TICKET_ROLE, SCALED_ROLE) == (Role.ACTOR, Role.ROLLOUT, Role.ROLLOUT)
    assert [role for role in Role if TRAITS[role].saves] == [Role.ACTOR, Role.CRITIC]
    assert SAVING_ROLES[0] is LEADING_ROLE
    assert [role for role in Role if TRAITS[role].has_engines] == [Role.ROLLOUT]
    assert [role for role in Role if TRAITS[role].grouping is Grouping.GANG] == [Role.ACTOR, Role.CRITIC]
    assert [role for role in Role if not TRAITS[role].loads_model] == [Role.ADVANTAGES]
    assert {role: TRAITS[role].stream for role in Role if TRAITS[role].stream} == {
        Role.ROLLOUT: Stream.POLICY,
        Role.ACTOR_FWD: Stream.POLICY,
        Role.REFERENCE: Stream.REFERENCE,
    }


@pytest.mark.parametrize("role", list(Role))
def test_the_restart_table_states_the_default_of_its_role(role: Role) -> None:
    message = RestartTableSpec.model_fields[role.value].description
    traits = TRAITS[role]
    assert message == f"Default {traits.scope}" + (", and nothing else." if traits.fixed_because else ".")


def test_the_restart_table_has_a_row_for_every_role() -> None:
    assert set(RestartTableSpec.model_fields) == {role.value for role in Role}


@pytest.mark.parametrize("role", list(Role))
def test_a_row_may_be_overridden_unless_its_scope_is_fixed(role: Role) -> None:
    other = Scope.IN_PLACE if TRAITS[role].scope is Scope.GLOBAL else Scope.GLOBAL
    if TRAITS[role].fixed_because:
        with pytest.raises(ValueError, match=f"{field_name(role)}: InPlace is not possible: "):
            RestartTableSpec.model_validate({field_name(role): other})
    else:
        assert RestartTableSpec.model_validate({field_name(role): other}).row(role) is other


@pytest.mark.parametrize("reference", [None, {}])
def test_the_queue_has_the_tasks_of_the_roles_that_are_there(reference: dict[str, int] | None) -> None:
    spec = RLJobSpec.model_validate(changed({"spec.roles.reference": reference, "spec.algorithm": {}})["spec"])
    served = {task for role in spec.roles.present() for task in TRAITS[role].tasks}
    assert {task.name for task in queue_shape(spec).tasks} == served


def test_a_role_is_named_in_the_table_and_where_it_works() -> None:
    named = re.compile(r"\bRole\.[A-Z]")
    files = [path for tree in ("crds", "operator", "cli", "workers") for path in (ROOT / tree).rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in files if named.search(path.read_text())}
    assert len(files) > 100
    assert [name for name in sorted(found) if not name.startswith(WHERE_A_ROLE_WORKS)] == []
