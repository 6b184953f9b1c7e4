"""Turns: of a rollout all roles that train are given Go, or all Stop, in whatever order and how often they ask."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import Epoch, Lineage, Role, WeightVersion
from rljob_api.wire.epochs import RestorePoint
from rljob_api.wire.turns import Turn, TurnAnswer
from rljob_workers.dcs.coordinator.context import Refused
from rljob_workers.dcs.coordinator.records import TurnsTaken
from rljob_workers.dcs.coordinator.turns import turn_of, turns_after, turns_of_epoch

BOTH = (Role.ACTOR, Role.CRITIC)
GO, STOP = TurnAnswer(turn=Turn.GO), TurnAnswer(turn=Turn.STOP)


def waits_for(*roles: Role) -> TurnAnswer:
    return TurnAnswer(turn=Turn.WAIT, waits_for=list(roles))


def restored(epoch: int, version: int) -> RestorePoint:
    return RestorePoint(
        epoch=Epoch(epoch),
        lineage=Lineage(epoch),
        version=WeightVersion(version),
        folder=None,
        kept_groups=0,
        dropped_groups=0,
    )


@dataclass
class Table:
    """A coordinator's table, as `TurnTable` keeps it."""

    roles: tuple[Role, ...] = BOTH
    restore: RestorePoint = field(default_factory=lambda: restored(1, 4))
    stored: TurnsTaken | None = None

    def ask(self, role: Role, rollout: int, *, drains: bool = False) -> TurnAnswer:
        self.stored = turns_after(turns_of_epoch(self.stored, self.restore), role, rollout, self.roles, drains=drains)
        return turn_of(self.stored, rollout, self.roles)

    def restart(self) -> None:
        """A new process of the coordinator reads what the one before has written."""
        if self.stored is not None:
            self.stored = TurnsTaken.model_validate_json(self.stored.model_dump_json(by_alias=True))


def asked(*questions: tuple[Role, int, bool]) -> list[TurnAnswer]:
    table = Table()
    return [table.ask(role, rollout, drains=drains) for role, rollout, drains in questions]


ACTOR, CRITIC = BOTH


@pytest.mark.parametrize(
    ("questions", "answers"),
    [
        pytest.param([(ACTOR, 4, False)], [waits_for(CRITIC)], id="one alone waits for the other"),
        pytest.param([(ACTOR, 4, False)] * 2, [waits_for(CRITIC)] * 2, id="asking twice makes no second role of it"),
        pytest.param([(ACTOR, 4, False), (CRITIC, 4, False)], [waits_for(CRITIC), GO], id="the last one lets all go"),
        pytest.param(
            [(ACTOR, 4, False), (CRITIC, 4, False), (ACTOR, 4, True)],
            [waits_for(CRITIC), GO, GO],
            id="what may be trained on already is not stopped",
        ),
        pytest.param(
            [(ACTOR, 4, False), (CRITIC, 4, False), (ACTOR, 5, True), (CRITIC, 4, False), (CRITIC, 5, False)],
            [waits_for(CRITIC), GO, STOP, GO, STOP],
            id="the other one hears Go late, and is stopped at the next",
        ),
        pytest.param([(CRITIC, 4, True)], [STOP], id="one that drains does not wait for the other"),
        pytest.param([(CRITIC, 4, True), (ACTOR, 4, False)], [STOP, STOP], id="all leave for one that drains"),
        pytest.param(
            [(ACTOR, 4, False), (ACTOR, 4, True), (CRITIC, 4, False)],
            [waits_for(CRITIC), STOP, STOP],
            id="one may drain while it waits",
        ),
        pytest.param([(CRITIC, 4, True), (CRITIC, 4, False)], [STOP, STOP], id="a stop is not taken back"),
    ],
)
def test_answers(questions: list[tuple[Role, int, bool]], answers: list[TurnAnswer]) -> None:
    assert asked(*questions) == answers


@pytest.mark.parametrize(
    ("questions", "sentence"),
    [
        pytest.param([(ACTOR, 5, False)], "5 has no turn yet: train_4 comes first", id="a turn was passed over"),
        pytest.param([(ACTOR, 4, True), (CRITIC, 5, False)], "train_4 was stopped", id="a stop was passed over"),
    ],
)
def test_no_rollout_is_passed_over(questions: list[tuple[Role, int, bool]], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        asked(*questions)


def test_no_role_goes_before_an_evaluation_is_over_that_may_end_the_job() -> None:
    taken = turns_of_epoch(None, restored(1, 4))
    for role in BOTH:
        taken = turns_after(taken, role, 4, BOTH, drains=False, waits=True)
    assert turn_of(taken, 4, BOTH) == TurnAnswer(turn=Turn.WAIT)
    assert turn_of(turns_after(taken, ACTOR, 4, BOTH, drains=True, waits=True), 4, BOTH) == STOP
    assert turn_of(turns_after(taken, ACTOR, 4, BOTH, drains=False), 4, BOTH) == GO


def test_an_epoch_begins_with_its_restored_version_whatever_was_decided_before() -> None:
    table = Table()
    assert table.ask(ACTOR, 4, drains=True) == STOP
    table.restore = restored(2, 3)
    assert table.ask(ACTOR, 3) == waits_for(CRITIC)
    assert table.ask(CRITIC, 3) == GO


LAST = 4
"""Rollouts of the walks below."""


@dataclass
class Trainer:
    """A role that trains, and asks as the loops do."""

    role: Role
    rollout: int = 0
    drains: bool = False
    left: bool = False


STEPS = st.lists(st.tuples(st.sampled_from(["ask", "lose", "repeat", "drain", "restart"]), st.integers(0, 9)))


@given(steps=STEPS, num_roles=st.integers(1, 3))
def test_all_roles_leave_with_one_version(steps: list[tuple[str, int]], num_roles: int) -> None:
    """Answers are lost, old questions come again, the coordinator is replaced, ranks are ordered to drain."""
    roles = (Role.ACTOR, Role.CRITIC, Role.REFERENCE)[:num_roles]
    table = Table(roles, restored(1, 0))
    trainers = [Trainer(role) for role in roles]
    sent: list[tuple[Role, int, bool]] = []
    given_to: dict[int, set[Turn]] = {}

    def ask(trainer: Trainer, *, is_lost: bool = False) -> None:
        if trainer.left or trainer.rollout == LAST:
            return
        question = trainer.role, trainer.rollout, trainer.drains
        sent.append(question)
        answer = table.ask(trainer.role, trainer.rollout, drains=trainer.drains).turn
        note(trainer.rollout, answer)
        if is_lost:
            return
        trainer.left = answer is Turn.STOP
        trainer.rollout += answer is Turn.GO

    def note(rollout: int, answer: Turn) -> None:
        if answer is Turn.WAIT:
            return
        assert given_to.setdefault(rollout, {answer}) == {answer}, "Go and Stop for one rollout"
        if answer is Turn.GO:
            assert {role for role, asked_for, _ in sent if asked_for == rollout} == set(roles), "before all had come"
            assert not any(one.left and one.rollout <= rollout for one in trainers), "one had left"

    for step, number in steps:
        trainer = trainers[number % num_roles]
        match step:
            case "ask":
                ask(trainer)
            case "lose":
                ask(trainer, is_lost=True)
            case "repeat" if sent:
                role, rollout, drains = sent[number % len(sent)]
                note(rollout, table.ask(role, rollout, drains=drains).turn)
            case "drain":
                trainer.drains = True
            case "restart":
                table.restart()
        reached = [trainer.rollout for trainer in trainers]
        assert max(reached) - min(reached) <= 1
    for _ in range(2 * LAST * num_roles):
        for trainer in trainers:
            ask(trainer)
    assert len({(trainer.rollout, trainer.left) for trainer in trainers}) == 1, "all leave with one version"
    assert all(trainer.left or trainer.rollout == LAST for trainer in trainers), "none waits for ever"
