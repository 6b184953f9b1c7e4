"""Rewards from servers: a request with a time limit, further tries, and a bound on how many run at the same time.

`remote` posts the answers to one prompt; the reward `judge` is in `judges`. Both are async functions that
`ServedReward` calls as a user's are called: `CustomReward` has the event loop, the checks of scores and the sentences.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp

from rljob_workers.rewards.base import Answer, Given, RewardMissing, RewardRefused, Score
from rljob_workers.rewards.custom import CustomReward
from rljob_workers.rewards.runners import LoopRunner

if TYPE_CHECKING:
    from rljob_api.spec.rollout import RemoteSpec, ServerSpec

_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
"""Statuses below 500 after which a further try may help."""

SHOWN = 200
"""Characters of a server's answer in a sentence."""


class ServerFailed(Exception):
    """No try has brought an answer."""

    def __init__(self, sentence: str, status: int | None) -> None:
        """`status`: of the last try; None where it had none."""
        super().__init__(sentence)
        self.status = status


class ServerRefused(RewardRefused):
    """The server answers with a status after which no further try helps."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class _TryAgain(Exception):
    """This one has not."""

    def __init__(self, sentence: str, status: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status


class _ClosedWhileIdle(_TryAgain):
    """The server has closed a connection that it had kept open, just when it was used again."""


@dataclass(slots=True)
class _Connection:
    """The connection that a request was sent over."""

    reused: bool = False


class Server:
    """Posts to one URL, for the tasks of one event loop.

    Its connections stay open between requests, at most `concurrency` of them. aiohttp sends no POST a second time by
    itself where a kept connection turns out to be closed; here it is sent again, and that is no try.
    """

    def __init__(self, spec: ServerSpec, url: str, field: str) -> None:
        """Raises ValueError for a token's variable that is not set."""
        self._spec = spec
        self.url = url
        self._headers = _headers(spec, field)
        self._turns = asyncio.Semaphore(spec.concurrency)
        self._session: aiohttp.ClientSession | None = None
        self.num_resent = 0
        """Tries after the first of a request."""

    async def close(self) -> None:
        """Ends its connections. A later request opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post(self, body: Any) -> Any:  # noqa: ANN401 - JSON
        """The answer's JSON. Raises ServerFailed where no try brought one.

        Raises ServerRefused, or ValueError for what is no JSON, where no further try would bring one.
        """
        encoded = json.dumps(body, default=str).encode()
        for number in range(self._spec.retries + 1):
            if number:
                self.num_resent += 1
                await asyncio.sleep(self._spec.backoff_seconds * 2 ** (number - 1))
            try:
                async with self._turns:
                    return await self._try(encoded)
            except _TryAgain as error:
                last = error
        sentence = f"{self.url} failed {self._spec.retries + 1} times, the last time with {last}"
        raise ServerFailed(sentence, last.status)

    async def _try(self, body: bytes) -> Any:  # noqa: ANN401 - JSON
        # Each such failure uses up a retained connection, so that a new one comes soon; others may return theirs.
        retained = self._spec.concurrency
        while True:
            try:
                return await self._request(body)
            except _ClosedWhileIdle:
                retained -= 1
                if retained < 0:
                    raise

    async def _request(self, body: bytes) -> Any:  # noqa: ANN401 - JSON
        if self._session is None:
            self._session = _session(self._spec, self._headers)
        connection = _Connection()
        try:
            async with self._session.post(self.url, data=body, trace_request_ctx=connection) as response:
                text = await response.text()
                status = response.status
        except TimeoutError as error:
            raise _TryAgain(f"no answer within {self._spec.timeout_seconds} s") from error
        except aiohttp.ClientConnectionError as error:
            failed = _ClosedWhileIdle if connection.reused else _TryAgain
            raise failed(f"{type(error).__name__}: {error}") from error
        except aiohttp.ClientError as error:
            raise _TryAgain(f"{type(error).__name__}: {error}") from error
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING:
            raise _TryAgain(f"status {status}: {text[:SHOWN]}", status)
        if status != HTTPStatus.OK:
            raise ServerRefused(f"{self.url} answers with status {status}: {text[:SHOWN]}", status)
        try:
            return json.loads(text)
        except ValueError:
            raise ValueError(f"{self.url} answers with no JSON: {text[:SHOWN]}") from None


def _session(spec: ServerSpec, headers: dict[str, str]) -> aiohttp.ClientSession:
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=spec.concurrency),
        timeout=aiohttp.ClientTimeout(total=spec.timeout_seconds),
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),  # a cookie of one request is nothing to the next
        trace_configs=[trace],
    )


async def _note_reuse(session: aiohttp.ClientSession, context: Any, event: Any, /) -> None:  # noqa: ANN401, ARG001
    context.trace_request_ctx.reused = True


def _headers(spec: ServerSpec, field: str) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if spec.token_env is None:
        return headers
    token = os.environ.get(spec.token_env)
    if not token:
        raise ValueError(
            f"{field}.tokenEnv: {spec.token_env} is not set where rollouts run. Set it, or remove tokenEnv."
        )
    return {**headers, "Authorization": f"Bearer {token}"}


class Scores(Protocol):
    """An async function of answers that asks a server."""

    server: Server
    num_unread: int
    """Replies without a score."""

    async def __call__(self, answers: Sequence[Answer], /) -> Sequence[Given | RewardMissing]:
        """Scores the answers to one prompt."""
        ...

    async def close(self) -> None:
        """Ends its connections."""
        ...


class RemoteScores:
    """A server's scores of the answers to one prompt.

    Request: {"answers": [{"prompt", "response", "label", "messages", "row", "finishReason", "tokens"}]}, an entry for
    each. Answer: {"scores": [...]}, each a number, null, or {"reward": number, "metrics": {name: number}}.
    """

    num_unread = 0
    """None: a reply without scores is refused."""

    def __init__(self, spec: RemoteSpec, field: str) -> None:
        self.server = Server(spec, spec.url, field)

    async def __call__(self, answers: Sequence[Answer], /) -> Sequence[Given | RewardMissing]:
        """See `Server.post`."""
        reply = await self.server.post({"answers": [_described(answer) for answer in answers]})
        scores = reply.get("scores") if isinstance(reply, dict) else None
        if not isinstance(scores, list):
            raise ValueError(f"the server answers with {json.dumps(reply)[:SHOWN]}, which has no list of scores.")
        return [_given(score) for score in scores]

    async def close(self) -> None:
        """Ends its connections."""
        await self.server.close()


def _described(answer: Answer) -> dict[str, Any]:
    return {
        "prompt": answer.prompt,
        "response": answer.response,
        "label": answer.label,
        "messages": [dict(message) for message in answer.messages],
        "row": dict(answer.row),
        "finishReason": answer.finish_reason,
        "tokens": len(answer.token_ids),
    }


def _given(score: Any) -> Given:  # noqa: ANN401 - JSON; what is no score is refused by who called
    if isinstance(score, dict) and "reward" in score:
        return Score(score["reward"], score.get("metrics", {}))
    given: Given = score
    return given


_OWN_LIMIT_SECONDS = 1e6
"""The limit of a call as a whole: its tries have time limits."""


class ServedReward(CustomReward):
    """A server's, with a count of the tries that it has cost."""

    def __init__(
        self,
        scores: Scores,
        url: str,
        field: str,
        part: str | None = None,
        *,
        per_sample: bool = False,
    ) -> None:
        """`part`: which reward of a sum it is."""
        name = url if part is None else f"{url} ({part})"
        runner = LoopRunner(scores, at_end=scores.close)
        super().__init__(name, runner, _OWN_LIMIT_SECONDS, field=field, per_sample=per_sample, named_by="url")
        self._scores = scores

    @property
    def num_resent(self) -> int:
        """Requests that it made again."""
        return self._scores.server.num_resent

    @property
    def num_unread(self) -> int:
        """Replies to it without a score."""
        return self._scores.num_unread
