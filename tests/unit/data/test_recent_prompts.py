"""A prompt is made once for those who ask for it one after the other."""

from rljob_workers.data.prompts import KEPT, Prompt, PromptSource, RecentPrompts


class Counting(PromptSource):
    """Notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 7

    def at(self, index: int) -> Prompt:
        self.asked.append(index)
        return Prompt(index, f"{index}", (index,), None)


def test_each_prompt_is_made_once_while_it_is_recent() -> None:
    source = Counting()
    recent = RecentPrompts(source)
    assert [recent.at(index).text for index in (3, 4, 3, 4)] == ["3", "4", "3", "4"]
    assert source.asked == [3, 4]
    for index in range(10, 10 + KEPT):
        recent.at(index)
    assert recent.at(3).token_ids == (3,)
    assert source.asked.count(3) == 2
    assert len(recent) == 7
