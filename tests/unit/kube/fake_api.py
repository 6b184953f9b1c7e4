"""An API server's answers by path, for tests of what reads them one after the other. It keeps what it was asked."""

from collections.abc import Callable, Mapping
from typing import Any

from rljob_operator.kube.clock import ApiClock
from rljob_operator.kube.errors import refusal
from rljob_operator.kube.kinds import Resource

Json = dict[str, Any]


class ApiOfAnswers:
    """`answers`: path -> object, or the status of a refusal. `on_ask` is called before each answer."""

    def __init__(self, answers: Mapping[str, Json | int], on_ask: Callable[[str], None] = lambda path: None) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []
        self.sent: list[Json] = []
        """Bodies of patches, and options of deletions."""
        self._on_ask = on_ask
        self.clock = ApiClock()

    async def list(self, resource: Resource, namespace: str | None, query: Mapping[str, str], accept: str = "") -> Json:
        return self._answer(resource.path(namespace) + (f"?{query['continue']}" if "continue" in query else ""))

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        return self._answer(resource.path(namespace, name))

    async def merge(self, resource: Resource, namespace: str, name: str, body: Json, subresource: str = "") -> Json:
        self.sent.append(body)
        return self._answer("PATCH " + resource.path(namespace, name, subresource))

    async def delete(self, resource: Resource, namespace: str, name: str, options: Json) -> Json:
        self.sent.append(options)
        return self._answer(f"DELETE {options['gracePeriodSeconds']} " + resource.path(namespace, name))

    def _answer(self, path: str) -> Json:
        self.asked.append(path)
        self._on_ask(path)
        answer = self.answers.get(path, 404)
        if isinstance(answer, int):
            raise refusal(path, answer, "Refused", "by the test")
        return answer
