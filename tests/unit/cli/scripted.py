"""A coordinator of the queue's commands that answers as a test orders."""

from __future__ import annotations

from collections.abc import Mapping

from rljob_api.base import ApiModel
from rljob_cli.jobs.coordinator import CoordinatorApi, NoAnswer


class Scripted(CoordinatorApi):
    """Gives these answers, one after the other."""

    def __init__(self, *answers: ApiModel | tuple[int, bytes] | NoAnswer, ended: bool = False) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str]] = []
        self.ended = ended

    def has_ended(self) -> bool:
        return self.ended

    def close(self) -> None:
        """Nothing is open."""

    def _send(self, method: str, path: str, query: Mapping[str, str], body: ApiModel | None) -> tuple[int, bytes]:
        self.asked.append((method, path))
        answer = self.answers.pop(0)
        if isinstance(answer, NoAnswer):
            raise answer
        return answer if isinstance(answer, tuple) else (200, answer.model_dump_json().encode())
