"""What crosses a process is as it was when it was recorded: fields of all messages, routes of all servers."""

import pytest

from tests.recorded import wire
from tests.recorded.canonical import Json, first_difference

SECTIONS = ["messages", "coordinator", "engine", "launcher", "operator"]


@pytest.fixture(scope="module")
def today() -> dict[str, Json]:
    return wire.wire_today()


def test_everything_is_recorded(today: dict[str, Json]) -> None:
    recorded = wire.recorded()
    assert list(recorded) == list(today) == SECTIONS
    assert all(recorded.values())


@pytest.mark.parametrize("section", SECTIONS)
def test_the_wire_is_as_it_was(today: dict[str, Json], section: str) -> None:
    difference = first_difference(wire.recorded()[section], today[section])
    assert difference is None, f"{section}: {difference}"
