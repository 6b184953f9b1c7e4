"""A reward is tried on the first rows of a job: `python -m rljob_workers.rewards.trial`, started by the command line.

    stdin     {"spec": the job's spec with absolute paths, "rows": how many; 0: it is only loaded}
    stdout    {"problem": sentence or null, "rows": [{"row", "prompt", "answers": [...]}]}
    SIGTERM   ends it

There is no model yet. Each row gets answers whose worth its author knows: the label itself, an empty one, another row's
label, and the prompt. There is no tokenizer either: a response has a token, 0, for each character and for its end. What
the reward prints goes to stderr. Processes that the reward starts end with it. Imports no torch, unless the reward
does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from rljob_api.row_files.conversations import Message
from rljob_api.rule import WITHOUT_RULES
from rljob_api.spec import RLJobSpec
from rljob_workers.data.prompts import Prompt, PromptEncoder, PromptSource
from rljob_workers.data.rows import label_of, open_rows, other_columns, prompt_of
from rljob_workers.rewards import Answer, Reward, RewardError, RewardMissing, Score, build_reward
from rljob_workers.rewards.base import Outcome
from rljob_workers.rewards.length import shaped_by_length
from rljob_workers.user_processes import begin_from_a_server, run_and_end_all

MOST_ANSWERS = 4
"""Answers of a row, and never more than are drawn for a prompt."""


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    """Number of the line or row in its file, from 1; of a task its index, from 0."""
    text: str
    label: Any
    messages: tuple[Message, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The others of its line."""

    @property
    def right(self) -> str | None:
        """The label as an answer; None where it is none that could be given."""
        label = self.label.get("answer") if isinstance(self.label, dict) else self.label
        return str(label) if isinstance(label, str | int | float) else None


class _Tasks(PromptSource):
    """A data set of reasoning_gym that scores, without a tokenizer."""

    def __init__(self, spec: RLJobSpec) -> None:
        from rljob_workers.data.procedural import build_dataset  # needs more than a plain install has

        assert spec.data.reasoning_gym is not None
        self.dataset = build_dataset(spec.data.reasoning_gym)

    def __len__(self) -> int:
        return len(self.dataset)

    def at(self, index: int) -> Prompt:
        """See the base; nothing is tokenised."""
        entry: dict[str, Any] = self.dataset[index]
        return Prompt(index, entry["question"], (), entry)

    def score(self, answer: str, entry: dict[str, Any]) -> float:
        """Scores by the data set's own scorer."""
        return float(self.dataset.score_answer(answer, entry))


class _FileRows(PromptSource):
    """The rows of all files, without a tokenizer and in their order."""

    def __init__(self, spec: RLJobSpec) -> None:
        self._data = spec.data
        self._encoder = PromptEncoder(spec.data, lambda *_: (0,))

    def __len__(self) -> int:
        return 0

    def at(self, index: int) -> Prompt:
        """Rows are read in turn."""
        raise NotImplementedError(f"row {index} of a trial")

    def rows(self) -> Iterator[_Row]:
        for file in self._data.files:
            rows = open_rows(file)
            for index in range(len(rows)):
                entry, number = rows.row(index), rows.number(index)
                where = f"{file.path} {rows.unit} {number}"
                text, _, messages = self._encoder.encode(prompt_of(entry, file.prompt_key, where), where)
                yield _Row(number, text, label_of(entry, file.label_key), messages, other_columns(file, entry))


def try_reward(spec: RLJobSpec, count: int) -> dict[str, Any]:
    """The trial's result."""
    tried: list[dict[str, Any]] = []
    try:
        source = _FileRows(spec) if spec.data.reasoning_gym is None else _Tasks(spec)
        reward = shaped_by_length(build_reward(spec.rollout.reward, spec.data, source), spec.rollout)
        rows = list(islice(_rows_of(source), count))
        for row in rows:
            answers = _answers(row, rows)[: min(MOST_ANSWERS, spec.rollout.samples_per_prompt)]
            tried.append({"row": row.number, "prompt": row.text, "answers": _scored(reward, row, answers)})
    except (RewardError, ValueError) as error:
        return {"problem": str(error), "rows": tried}
    return {"problem": None, "rows": tried}


def _rows_of(source: _FileRows | _Tasks) -> Iterator[_Row]:
    if isinstance(source, _FileRows):
        return source.rows()
    prompts = (source.at(index) for index in range(len(source)))
    return (_Row(prompt.index, prompt.text, prompt.label) for prompt in prompts)


def _answers(row: _Row, rows: Sequence[_Row]) -> list[tuple[str, str]]:
    """Names of answers, and their texts; the right one first."""
    other = next((one.right for one in rows if one.right not in (None, row.right)), None)
    parts = [("label", row.right), ("empty", ""), ("another row's label", other), ("prompt", row.text)]
    return [(what, text) for what, text in parts if text is not None]


def _scored(reward: Reward, row: _Row, answers: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    group = [
        Answer(
            row.text,
            text,
            row.label,
            row.number,
            index,
            token_ids=tokens,
            loss_mask=(1,) * len(tokens),
            messages=row.messages,
            row=row.columns,
        )
        for index, (text, tokens) in enumerate((text, (0,) * (len(text) + 1)) for _, text in answers)
    ]
    (scores,) = reward.score_groups([group])
    return [
        {
            "what": what,
            "response": text,
            "reward": _reward_of(score),
            "metrics": dict(score.metrics) if isinstance(score, Score) else {},
            "error": str(score) if isinstance(score, RewardError) else None,
            "isMissing": isinstance(score, RewardMissing),
        }
        for (what, text), score in zip(answers, scores, strict=True)
    ]


def _reward_of(outcome: Outcome) -> float | None:
    if isinstance(outcome, RewardError):
        return None
    return outcome.reward if isinstance(outcome, Score) else outcome


def main() -> None:
    """Reads what is asked, and answers."""
    begin_from_a_server()
    asked = json.loads(sys.stdin.buffer.read())
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the user's output is no part of the answer
    with answer:
        # Rules between fields are held by who asks, who may have left out a field that they are about.
        spec = RLJobSpec.model_validate(asked["spec"], context=WITHOUT_RULES)
        json.dump(try_reward(spec, asked["rows"]), answer)


if __name__ == "__main__":
    run_and_end_all(main)
