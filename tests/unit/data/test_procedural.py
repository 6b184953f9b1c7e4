"""reasoning_gym as a source: its tasks, its scores, its refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from rljob_api.spec.data import DataSpec, ReasoningGymSpec
from rljob_api.spec.model import TokenizerConfig
from rljob_api.spec.rollout import RewardSpec
from rljob_workers.data import PromptSource, build_prompt_source
from rljob_workers.data.procedural import build_dataset
from rljob_workers.models.tokenizers import make_tokenizer
from rljob_workers.rewards import Answer, build_reward

TOKENIZER = make_tokenizer(TokenizerConfig())


def make_data(dataset: str = "letter_counting", **fields: Any) -> DataSpec:
    return DataSpec(reasoning_gym=ReasoningGymSpec(dataset=dataset, **{"size": 50, **fields}))


def make_source(data: DataSpec) -> PromptSource:
    return build_prompt_source(data, TOKENIZER)


def test_tasks_are_those_of_the_dataset_in_a_shuffled_order() -> None:
    source = make_source(make_data())
    prompts = [source.at(position) for position in range(50)]
    assert len({prompt.text for prompt in prompts}) == len(source) == 50
    assert [prompt.label["metadata"]["source_index"] for prompt in prompts] != list(range(50))
    assert all(
        TOKENIZER.decode(list(prompt.token_ids)) == prompt.text == prompt.label["question"] for prompt in prompts
    )
    assert source.at(7) == make_source(make_data()).at(7)
    assert source.at(50).text != source.at(0).text


def test_seed_and_parameters_are_taken() -> None:
    texts = {make_source(make_data("count_bits", seed=seed)).at(0).text for seed in range(2)}
    assert len(texts) == 2
    numbers = [
        make_source(make_data("count_bits", parameters={"max_n": 3})).at(i).label["metadata"]["number"]
        for i in range(20)
    ]
    assert set(numbers) <= {1, 2, 3}


def test_tasks_are_the_same_in_another_process() -> None:
    """Hash seeds differ between processes; a task must not."""
    names = ("letter_counting", "count_bits")
    script = (
        "from rljob_api.spec.data import ReasoningGymSpec\n"
        "from rljob_workers.data.procedural import build_dataset\n"
        f"for name in {names}:\n"
        "    d = build_dataset(ReasoningGymSpec(dataset=name, size=5))\n"
        "    print([d[i]['question'] for i in range(5)])\n"
    )
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    env = {**os.environ, "PYTHONHASHSEED": other}
    printed = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, check=True, text=True).stdout
    here = [build_dataset(ReasoningGymSpec(dataset=name, size=5)) for name in names]
    assert printed.splitlines() == [str([made[i]["question"] for i in range(5)]) for made in here]


def test_its_own_score_is_the_reward() -> None:
    data = make_data()
    source = make_source(data)
    prompt = source.at(3)
    reward = build_reward(RewardSpec(), data, source)
    right, wrong = prompt.label["answer"], "none"
    answers = [
        Answer(prompt.text, text, prompt.label, 0, index) for index, text in enumerate([right, f" {right}\n", wrong])
    ]
    assert reward.score_groups([answers, answers[:1]]) == [[1.0, 1.0, 0.0], [1.0]]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        pytest.param(
            make_data("leter_counting"),
            r"reasoning_gym\.?.* has no dataset 'leter_counting'\. Did you mean letter_counting",
            id="misspelt dataset",
        ),
        pytest.param(
            make_data(parameters={"max_m": 3}),
            r"data\.reasoningGym\.parameters: letter_counting refuses \{'max_m': 3\}: .*max_m",
            id="unknown parameter",
        ),
        pytest.param(
            make_data(parameters={"min_words": -1}),
            r"data\.reasoningGym\.parameters: letter_counting refuses \{'min_words': -1\}: min_words must be positive",
            id="parameter out of bounds",
        ),
        pytest.param(
            make_data(parameters={"seed": 3}),
            r"data\.reasoningGym\.parameters: seed has a field of its own\. Set data\.reasoningGym\.seed\.",
            id="a parameter that is a field",
        ),
    ],
)
def test_what_it_refuses_is_reported(data: DataSpec, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_source(data)
