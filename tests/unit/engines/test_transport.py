"""Replies in lines, however their bytes are cut into chunks."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.engines.torch_engine.torch_client import _read_lines

LINES = st.lists(st.text("abc{}:,é", min_size=1, max_size=20), min_size=1, max_size=8)


@given(LINES, st.data())
def test_all_lines_but_the_last_are_reported_on_the_way(lines: list[str], data: st.DataObject) -> None:
    body = b"".join(line.encode() + b"\n" for line in lines)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(body) - 1), max_size=10))) if len(body) > 1 else []
    chunks = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]

    async def read() -> tuple[bytes, list[bytes]]:
        reader = asyncio.StreamReader()
        for chunk in chunks:
            reader.feed_data(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        reader.feed_data(b"0\r\n\r\n")
        reported: list[bytes] = []
        return await _read_lines(reader, reported.append), reported

    last, reported = asyncio.run(read())
    assert [line.decode() for line in reported] == lines[:-1]
    assert last.decode() == lines[-1] + "\n"
