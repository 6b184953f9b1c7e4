"""The reward `judge`: a model behind an endpoint like OpenAI's grades each answer by a rubric.

Called as a server's scores are (`servers`). `judge_scores` reads the score in a reply.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rljob_api.spec.rollout import JudgeReply
from rljob_workers.rewards.base import Answer, Given, RewardMissing, named_prompt
from rljob_workers.rewards.judge_scores import read_score
from rljob_workers.rewards.servers import SHOWN, Server, ServerFailed, ServerRefused

if TYPE_CHECKING:
    from rljob_api.spec.rollout import JudgeSpec

_LOG = logging.getLogger(__name__)


_REFUSES_SCHEMAS = frozenset({400, 404, 415, 422, 500, 501})
"""Statuses by which servers say that they do not know `response_format`; 500 among them, as some raise on it."""


_SCORE_SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "score",
        "strict": True,
        "schema": {
            "type": "object",
            # In this order: a judge that gives its reasons first has them before its score.
            "properties": {"reason": {"type": "string"}, "score": {"type": "number"}},
            "required": ["reason", "score"],
            "additionalProperties": False,
        },
    },
}


_AS_TEXT = "End with a line `Score: N`, where N is a number from {}."


_AS_JSON = "Reply with a JSON object: `reason`, in one or two sentences, then `score`, a number from {}."


class JudgedScore:
    """A judge's score of one answer, from 0.0 to 1.0; none where its reply has not exactly one on the scale.

    It is asked for JSON of a schema. A server that refuses a request with it and takes the same without is asked for a
    line of text from then on.
    """

    def __init__(self, spec: JudgeSpec, field: str) -> None:
        self._spec = spec
        self._field = field
        self.server = Server(spec, f"{spec.url.rstrip('/')}/chat/completions", field)
        self._asks_for_json = spec.reply is JudgeReply.SCHEMA
        self._takes_schemas = False
        """A request with the schema was answered."""
        self.num_unread = 0
        """Replies without a score."""

    async def __call__(self, answers: Sequence[Answer], /) -> Sequence[Given | RewardMissing]:
        """Scores one answer at a time."""
        return list(await asyncio.gather(*(self._score(answer) for answer in answers)))

    async def close(self) -> None:
        """Ends its connections."""
        await self.server.close()

    async def _score(self, answer: Answer) -> Given | RewardMissing:
        reply = await self._reply(answer)
        try:
            text = reply["choices"][0]["message"]["content"] or ""
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"the judge answers with {json.dumps(reply)[:SHOWN]}, which is no completion.") from None
        lowest, highest = self._spec.lowest, self._spec.highest
        score = read_score(str(text), lowest, highest)
        if score is None:
            self.num_unread += 1
            return RewardMissing(
                f"{self._field}.url: {self._spec.url}: the judge's reply for answer {answer.index} to"
                f" {named_prompt(answer.prompt)} has not exactly one score from {lowest:g} to {highest:g}; it ends with"
                f" {str(text)[-SHOWN:]!r}."
            )
        return (score - lowest) / (highest - lowest)

    async def _reply(self, answer: Answer) -> Any:  # noqa: ANN401 - JSON
        if not self._asks_for_json:
            return await self.server.post(self._request(answer))
        try:
            reply = await self.server.post({**self._request(answer, _AS_JSON), "response_format": _SCORE_SCHEMA})
        except (ServerRefused, ServerFailed) as error:
            fails_now = isinstance(error, ServerFailed) and self._takes_schemas
            if error.status not in _REFUSES_SCHEMAS or fails_now:
                raise
            reply = await self.server.post(self._request(answer))
            if self._asks_for_json:
                self._asks_for_json = False
                _LOG.warning("%s: asked without response_format from here on, since: %s", self._field, error)
        else:
            self._takes_schemas = True
        return reply

    def _request(self, answer: Answer, ending: str = _AS_TEXT) -> dict[str, Any]:
        # Each part is put in once, so that a response with {label} in it is shown nothing.
        parts = {"prompt": answer.prompt, "response": answer.response, "label": str(answer.label)}
        question = re.sub(r"\{(prompt|response|label)\}", lambda found: parts[found[1]], self._spec.rubric)
        scale = f"{self._spec.lowest:g} to {self._spec.highest:g}"
        return {
            "model": self._spec.model,
            "messages": [{"role": "user", "content": f"{question}\n\n{ending.format(scale)}"}],
            "temperature": 0,
            "max_tokens": self._spec.max_tokens,
        }
