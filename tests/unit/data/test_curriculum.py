"""Which rows a curriculum chooses: the window, the first choice of several ranks, and functions that cannot choose."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.curriculum import CurriculumSpec
from rljob_workers.data.curriculum import Curriculum, CurriculumPrompts, PassRates
from rljob_workers.data.mixture import MixedPrompts, Mixing
from rljob_workers.data.prompts import Prompt, RowSource

NUM_ROWS = 10


class Numbers(RowSource):
    """Row n is the text NAMEn."""

    def __init__(self, count: int, name: str = "") -> None:
        self._count = count
        self._name = name

    def __len__(self) -> int:
        return self._count

    def at(self, index: int, /) -> Prompt:
        return self.of_row(index % self._count, index)

    def of_row(self, row: int, index: int) -> Prompt:
        assert 0 <= row < self._count
        return Prompt(index, f"{self._name}{row}", (0,), None)


class Queue:
    """As the control Redis: the first row that is chosen for a draw stands."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.asked = 0

    def chosen(self, draws: range, /) -> list[int | None]:
        self.asked += 1
        return [self.rows.get(draw) for draw in draws]

    def choose(self, draws: Sequence[int], rows: Sequence[int], /) -> list[int]:
        return [self.rows.setdefault(draw, row) for draw, row in zip(draws, rows, strict=True)]

    def pass_rates(self, num_rows: int, /) -> PassRates:
        return PassRates.parse(b"", num_rows)


def prompts(queue: Queue, function: Callable[[PassRates, Sequence[int]], object], window: int = 4) -> CurriculumPrompts:
    return CurriculumPrompts(Numbers(NUM_ROWS), queue, Curriculum("own:choose", function), window)  # type: ignore[arg-type]


def test_the_function_is_called_once_for_a_window() -> None:
    calls: list[list[int]] = []

    def choose(rates: PassRates, draws: Sequence[int]) -> list[int]:
        calls.append(list(draws))
        return [len(rates) - 1 - draw for draw in draws]

    found = prompts(queue := Queue(), choose)
    assert [(found.at(draw).index, found.at(draw).text) for draw in (1, 0, 5, 3)] == [
        (1, "8"),
        (0, "9"),
        (5, "4"),
        (3, "6"),
    ]
    assert calls == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert queue.asked == 2


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30)), min_size=1, max_size=60), st.randoms())
def test_all_ranks_get_the_same_row_for_a_draw_whatever_the_function_chooses(
    asked: list[tuple[int, int]], random: object
) -> None:
    queue, seen = Queue(), dict[int, str]()
    ranks = [prompts(queue, lambda rates, draws: [random.randrange(len(rates)) for _ in draws]) for _ in range(2)]  # type: ignore[attr-defined]
    for rank, draw in asked:
        assert seen.setdefault(draw, ranks[rank].at(draw).text) == ranks[rank].at(draw).text


def test_a_job_with_another_batch_size_than_before_chooses_what_is_not_chosen() -> None:
    calls: list[list[int]] = []

    def choose(_: PassRates, draws: Sequence[int]) -> list[int]:
        calls.append(list(draws))
        return [9] * len(draws)

    queue = Queue()
    prompts(queue, lambda _, draws: [draw % 2 for draw in draws], window=4).at(5)
    found = prompts(queue, choose, window=3)
    assert [found.at(draw).text for draw in range(2, 10)] == ["9", "9", "0", "1", "0", "1", "9", "9"]
    assert calls == [[0, 1, 2], [3], [8], [9, 10, 11]]


def raises(rates: PassRates, draws: Sequence[int]) -> object:
    return 1 / 0


def draws_nothing(rates: PassRates, draws: Sequence[int]) -> Iterator[int]:
    yield 0
    yield dict[str, int]()["row"]


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        pytest.param(
            draws_nothing,
            r"raised KeyError on draws 0 to 3 \(.*test_curriculum.py, line \d+\): 'row'",
            id="raises later",
        ),
        pytest.param(lambda *_: cycle([1, 2]), "returned more than 4 rows for draws 0 to 3. Return a row", id="no end"),
        pytest.param(lambda *_: [1] * 9, "returned more than 4 rows for draws 0 to 3. Return a row", id="too many"),
        pytest.param(
            raises, r"raised ZeroDivisionError on draws 0 to 3 \(.*test_curriculum.py, line \d+\)", id="raises"
        ),
        pytest.param(
            lambda *_: [1, 2], "returned 2 rows for draws 0 to 3. Return a row for each of the 4", id="too few"
        ),
        pytest.param(lambda *_: None, "returned None for draws 0 to 3. Return a row for each of the 4", id="nothing"),
        pytest.param(lambda *_: [0.0] * 4, r"returned \[0.0, 0.0, 0.0, 0.0\] for draws", id="no whole numbers"),
        pytest.param(
            lambda *_: [0, 1, 10, 2], "returned row 10 for .* and the data has rows 0 to 9", id="beyond the data"
        ),
        pytest.param(lambda *_: [0, -1, 1, 2], "returned row -1 for draws", id="before the data"),
    ],
)
def test_a_function_that_cannot_choose_is_named(
    function: Callable[[PassRates, Sequence[int]], object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"^rollout.curriculum.function: own:choose {sentence}"):
        prompts(Queue(), function).at(2)


def test_numbers_of_numpy_are_rows() -> None:
    assert prompts(Queue(), lambda _, draws: np.arange(len(draws))).at(2).text == "2"
    assert prompts(Queue(), lambda _, draws: (3 for _ in draws)).at(2).text == "3"


MODULE = """
def choose(rates, draws):
    return [0 for _ in draws]

def one(rates):
    return []

async def waits(rates, draws):
    return []
"""


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        pytest.param("gone", "was not found: module easy_gone .* has no 'gone'", id="no such function"),
        pytest.param("one", r"cannot be called with 2 arguments \(rates, draws\)", id="too few arguments"),
        pytest.param("waits", "is async, and is called. Write it as `def choose", id="an async function"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_at_the_start(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / f"easy_{name}.py").write_text(MODULE)
    with pytest.raises(ValueError, match=f"^rollout.curriculum.function: easy_{name}:{name} {sentence}"):
        Curriculum.load(CurriculumSpec(function=f"easy_{name}:{name}", path=str(tmp_path)))


def test_a_function_is_loaded_and_asked(tmp_path: Path) -> None:
    (tmp_path / "easy.py").write_text(MODULE)
    curriculum = Curriculum.load(CurriculumSpec(function="easy:choose", path=str(tmp_path)))
    assert curriculum.choose(PassRates.parse(b"", 3), range(2)) == [0, 0]


def test_rows_are_counted_through_the_sources() -> None:
    mixed = MixedPrompts([Numbers(3, "a"), Numbers(1, "b"), Numbers(2, "c")], Mixing([1, 1, 1], 0))
    assert [mixed.of_row(row, 7 + row).text for row in range(len(mixed))] == ["a0", "a1", "a2", "b0", "c0", "c1"]
    assert mixed.of_row(4, 99).index == 99


def test_data_that_has_fewer_rows_than_before_is_named() -> None:
    queue = Queue()
    queue.rows = dict.fromkeys(range(4), NUM_ROWS)
    with pytest.raises(
        ValueError, match=r"^rollout.curriculum: row 10 was chosen for draw 2, and the data has 10 rows now"
    ):
        prompts(queue, lambda *_: []).at(2)


def test_data_that_has_too_many_rows_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"the data has 5000001 rows, and pass rates are counted for 5000000 at most, since"
    ):
        CurriculumPrompts(Numbers(5_000_001), Queue(), Curriculum("own:choose", lambda _, draws: list(draws)), 4)


PAGE = Path(__file__).parents[3] / "docs/data.md"


def test_the_example_of_the_page_leaves_what_always_passes_until_all_does() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # the page's own
    counts = np.array([4, 4, 4, 0], np.int64)
    passed = np.array([4, 2, 0, 0], np.int64)
    rates = PassRates(np.ones(4, np.int64), counts, passed, passed.astype(np.float64))
    curriculum = Curriculum("page:choose", names["choose"])
    rows = Counter(curriculum.choose(rates, range(8, 2008)))
    assert rows[0] == 0
    assert rows[1] + rows[2] == pytest.approx(1600, abs=150)
    solved = PassRates(counts, counts, counts, counts.astype(np.float64))
    assert len(curriculum.choose(replace(solved, samples=np.full(4, 4), passed=np.full(4, 4)), range(8))) == 8
