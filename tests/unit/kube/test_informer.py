"""The informer: lines of a watch, however the network cuts them, and how long it waits before the next watch."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.kube.api import Json
from rljob_operator.kube.errors import ApiUnreachable, refusal
from rljob_operator.kube.informer import RETRY_SECONDS, Informer, _lines
from rljob_operator.kube.kinds import PODS, Resource
from rljob_operator.kube.operator_metrics import Metrics


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


GONE = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
NEWS = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}}


class Server:
    """An API server whose lists succeed, and whose watches report these events; an error comes instead of a watch."""

    def __init__(self, watches: Sequence[Sequence[Json] | Exception]) -> None:
        self._watches = list(watches)
        self.lists = 0
        self.pauses: list[float] = []

    async def list(self, resource: Resource, namespace: str | None, query: Mapping[str, str], accept: str) -> Json:
        self.lists += 1
        return {"items": [], "metadata": {"resourceVersion": "7"}}

    @asynccontextmanager
    async def watch(self, *question: object) -> AsyncIterator[Stream]:
        answer = self._watches.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield Stream([orjson.dumps(event) + b"\n" for event in answer])

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if not self._watches:
            raise asyncio.CancelledError


class Nowhere:
    def replace(self, kind: str, namespace: str | None, objects: list[Json]) -> None:
        pass

    def put(self, kind: str, raw: Json) -> None:
        raise AssertionError(kind, raw)

    drop = put


def watched(monkeypatch: pytest.MonkeyPatch, *watches: Sequence[Json] | Exception) -> Server:
    server = Server(watches)
    monkeypatch.setattr("rljob_operator.kube.informer.asyncio.sleep", server.pause)
    informer = Informer(cast(Any, server), PODS, None, "label", cast(Any, Nowhere()), Metrics())
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(informer.run())
    return server


@pytest.mark.parametrize(
    "end", [[GONE], refusal("watch", 410, "Expired", "too old"), ApiUnreachable("no answer"), []], ids=repr
)
def test_watches_that_end_before_they_report_anything_come_later_and_later(
    monkeypatch: pytest.MonkeyPatch, end: Sequence[Json] | Exception
) -> None:
    server = watched(monkeypatch, *[end] * 12)
    shortest, longest = RETRY_SECONDS
    for count, pause in enumerate(server.pauses):
        limit = min(longest, shortest * 2.0**count)
        assert limit / 2 <= pause <= limit


def test_what_a_watch_reports_makes_the_next_pause_short_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = watched(monkeypatch, *[[GONE]] * 5, [NEWS, GONE], [NEWS])
    assert server.lists == 7
    assert max(server.pauses[-2:]) <= RETRY_SECONDS[0]


def test_the_pages_of_a_list_replace_the_cache_together_and_the_watch_goes_on_from_the_last() -> None:
    queries: list[dict[str, str]] = []
    replaced: list[Json] = []

    class Paged:
        async def list(self, resource: Resource, namespace: str | None, query: Json, accept: str) -> Json:
            queries.append(dict(query))
            token = "" if "continue" in query else "more"
            return {"items": [query.get("continue", "first")], "metadata": {"resourceVersion": "9", "continue": token}}

        def watch(self, resource: Resource, namespace: str | None, query: Json, *_: object) -> None:
            queries.append(query)
            raise asyncio.CancelledError

    class Replaced(Nowhere):
        def replace(self, kind: str, namespace: str | None, objects: list[Json]) -> None:
            replaced.append({"kind": kind, "objects": objects})

    informer = Informer(cast(Any, Paged()), PODS, None, "label", cast(Any, Replaced()), Metrics())
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(informer.run())
    assert [query.get("continue") for query in queries] == [None, "more", None]
    assert (queries[0]["labelSelector"], queries[2]["resourceVersion"]) == ("label", "9")
    assert replaced == [{"kind": "Pod", "objects": ["first", "more"]}]
    assert informer.synced.is_set()
