"""Replies in lines, however their bytes are cut into chunks."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.engines.torch_engine.torch_client import _read_lines

LINES = st.lists(st.text("abc{}:,é", min_size=1, max_size=20), min_size=1, max_size=8)


@given(LINES, st.data())
def test_lines_come_whole_one_by_one(lines: list[str], data: st.DataObject) -> None:
    body = b"".join(line.encode() + b"\n" for line in lines)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(body) - 1), max_size=10))) if len(body) > 1 else []
    chunks = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]

    async def read() -> list[bytes]:
        reader = asyncio.StreamReader()
        for chunk in chunks:
            reader.feed_data(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        reader.feed_data(b"0\r\n\r\n")
        return [line async for line in _read_lines(reader)]

    assert [line.decode() for line in asyncio.run(read())] == lines


def test_a_line_that_has_no_end_is_none() -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(b"3\r\n{}{\r\n0\r\n\r\n")
        async for _ in _read_lines(reader):
            pass

    with pytest.raises(EOFError, match="no end"):
        asyncio.run(read())
