"""Prompts that are too long are exchanged until one fits, counted, and named where none does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import RolloutId
from rljob_api.spec.rollout import LongPrompts
from rljob_workers.data.prompts import Prompt, PromptSource
from rljob_workers.dcs.membership.counters import PASSED_OVER, TRUNCATED
from rljob_workers.rollout.admission import MAX_IN_A_ROW, FittingPrompts, PromptLimit
from rljob_workers.transfer_queue.errors import TicketLost
from rljob_workers.transfer_queue.types import Ticket


class Lengths(PromptSource):
    """Prompts of these lengths, over and over."""

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self._lengths)

    def at(self, index: int) -> Prompt:
        self.asked.append(index)
        return Prompt(index, "", (0,) * self._lengths[index % len(self)], None)


class Cursor:
    """The queue's: the next prompt is the one after all that were drawn."""

    def __init__(self, drawn: int) -> None:
        self.next = drawn
        self.loses = False

    def pass_over(self, ticket: Ticket, /) -> Ticket:
        if self.loses:
            raise TicketLost("it came back")
        self.next += 1
        return replace(ticket, id=1000 + self.next, prompt_index=self.next - 1)


def tickets(count: int) -> Iterator[Ticket]:
    return (Ticket(i, RolloutId(0), i, attempt=2, prompt_index=i, alone=False) for i in range(count))


LIMIT = PromptLimit.of(5, 100)


@given(
    st.lists(st.integers(1, 10), min_size=1, max_size=30).filter(lambda lengths: min(lengths) <= 5), st.integers(1, 8)
)
def test_every_prompt_fits_and_none_that_does_is_left_out(lengths: list[int], count: int) -> None:
    counters: dict[str, float] = {}
    queue, source = Cursor(count), Lengths(lengths)
    fitting = FittingPrompts(queue, source, LIMIT, counters).of(list(tickets(count)))
    assert sorted(source.asked) == list(range(queue.next)), "each prompt is made once"
    assert [(each.ticket.group, each.ticket.attempt) for each in fitting] == [(group, 2) for group in range(count)]
    assert all(each.prompt == source.at(each.ticket.prompt_index) for each in fitting)
    retained = {each.prompt.index for each in fitting}
    assert retained == {index for index in range(queue.next) if len(source.at(index).token_ids) <= 5}
    assert counters.get(PASSED_OVER, 0) == queue.next - count


def test_a_ticket_that_came_back_is_left_out() -> None:
    queue = Cursor(2)
    queue.loses = True
    fitting = FittingPrompts(queue, Lengths([9, 1]), LIMIT, {}).of(list(tickets(2)))
    assert [each.ticket.group for each in fitting] == [1]


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        pytest.param(
            PromptLimit.of(5, 100),
            r"^rollout\.maxPromptTokens: 1000 prompts in a row have more than 5 tokens, the last 120\. Raise max",
            id="more than the job wants",
        ),
        pytest.param(
            PromptLimit.of(None, 100),
            r"^data\.prompts: 1000 prompts in a row have more than 99 tokens, the last 120\. The model has 100 pos",
            id="no room for a response",
        ),
        pytest.param(
            PromptLimit.of(100, 100), r"^data\.prompts: .* more than 99 tokens", id="the model's bound is lower"
        ),
    ],
)
def test_data_of_which_nothing_fits_is_named(limit: PromptLimit, sentence: str) -> None:
    queue = Cursor(1)
    with pytest.raises(ValueError, match=sentence):
        FittingPrompts(queue, Lengths([120]), limit, {}).of(list(tickets(1)))
    assert queue.next == MAX_IN_A_ROW


def test_truncated_prompts_keep_their_last_tokens_and_are_counted() -> None:
    class Numbered(Lengths):
        def at(self, index: int) -> Prompt:
            prompt = super().at(index)
            return replace(prompt, token_ids=tuple(range(len(prompt.token_ids))))

    counters: dict[str, float] = {}
    queue = Cursor(3)
    limit = PromptLimit.of(5, 100, LongPrompts.TRUNCATE)
    fitting = FittingPrompts(queue, Numbered([7, 5, 6]), limit, counters).of(list(tickets(3)))
    assert [each.prompt.token_ids for each in fitting] == [(2, 3, 4, 5, 6), (0, 1, 2, 3, 4), (1, 2, 3, 4, 5)]
    assert [each.ticket.prompt_index for each in fitting] == [0, 1, 2]
    assert (queue.next, counters) == (3, {TRUNCATED: 2})


def test_a_long_prompt_is_refused_by_name_where_the_job_asks_for_it() -> None:
    limit = PromptLimit.of(5, 100, LongPrompts.REFUSE)
    sentence = (
        r"^rollout\.longPrompts: Refuse, and prompt 1, '', has 6 tokens, which is more than 5 \(rollout\.maxPrompt"
    )
    with pytest.raises(ValueError, match=sentence):
        FittingPrompts(Cursor(2), Lengths([5, 6]), limit, {}).of(list(tickets(2)))
