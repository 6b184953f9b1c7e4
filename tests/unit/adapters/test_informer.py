"""Lines of a watch, however the network cuts them."""

import asyncio
from itertools import pairwise
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.adapters.informer import _lines


class Stream:
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    async def iter_any(self) -> Any:
        for chunk in self._chunks:
            yield chunk


@given(st.lists(st.binary(min_size=1).filter(lambda line: b"\n" not in line)), st.lists(st.integers(0, 200)))
def test_lines_are_whole_wherever_the_chunks_end(lines: list[bytes], cuts: list[int]) -> None:
    text = b"".join(line + b"\n" for line in lines)
    at = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    chunks = [text[start:end] for start, end in pairwise(at)]

    async def read() -> list[bytes]:
        return [line async for line in _lines(cast(Any, Stream(chunks)))]

    assert asyncio.run(read()) == lines
