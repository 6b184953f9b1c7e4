"""Whether every prompt of an evaluation's sets leaves room for an answer: none is passed over there, as in training.

Asked by the rollout role when it opens the sets, and by the command line before:

    python -m rljob_workers.data.room
    stdin     {"spec": the job's spec with absolute paths, "sets": places of the sets, "positions": of the model}
    stdout    {"problems": [sentence, ...]}

Imports transformers for the tokenizer, and no torch by itself.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rljob_api.rule import WITHOUT_RULES
from rljob_api.spec import RLJobSpec
from rljob_api.spec.set_defaults import stated_data
from rljob_workers.data import build_prompt_source
from rljob_workers.data.rows import place_of_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rljob_api.spec.data import DataSpec
    from rljob_workers.data.prompts import PromptSource


def need_room(data: DataSpec, source: PromptSource, field: str, positions: int) -> None:
    """ValueError, a sentence, where prompts of `source`, which is of `data`, fill all positions of the model."""
    lengths = {place: len(source.at(place).token_ids) for place in range(len(source))}
    too_long = [place for place, length in lengths.items() if length >= positions]
    if too_long:
        longest = max(too_long, key=lambda place: lengths[place])
        raise ValueError(
            f"{field}: {len(too_long)} of {len(source)} prompts have more than {positions - 1} tokens, and so leave no"
            f" room for an answer in the model's {positions} positions; the longest, {place_of_prompt(data, longest)},"
            f" has {lengths[longest]}. Leave them out: no sample of a set is passed over."
        )


def _problems(asked: Mapping[str, Any]) -> Iterator[str]:
    from rljob_workers.models.tokenizers import build_tokenizer

    # Rules between fields are held by who asks.
    spec = RLJobSpec.model_validate(asked["spec"], context=WITHOUT_RULES)
    assert spec.evaluation is not None, "who asks has found sets"
    tokenizer = build_tokenizer(spec.model)
    for place in asked["sets"]:
        data, field = stated_data(spec.evaluation.sets[place].data), f"evaluation.sets[{place}]"
        try:
            need_room(data, build_prompt_source(data, tokenizer), f"{field}.data", asked["positions"])
        except ValueError as error:
            yield str(error)


if __name__ == "__main__":
    json.dump({"problems": list(_problems(json.load(sys.stdin)))}, sys.stdout)
