"""What can be known about a job from this machine before anything starts, without torch.

Called by the commands with a job whose paths are absolute. Reads the files that the manifest names, and starts nothing
of the job; a model of a family that is not known is tried by a process (`family_lookup`).
"""

import difflib
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from rljob_api.backends import TrainerBackend, trainer_backend
from rljob_api.spec import (
    DataSpec,
    ModelSpec,
    ReasoningGymSpec,
    RewardSpec,
    RLJob,
    RLJobSpec,
    TokenizerKind,
)
from rljob_api.tokenizer_size import alphabet_of
from rljob_cli.family_lookup import model_family_problem
from rljob_cli.reward_lookup import reward_problem

_SHOWN_LINES = 5
"""Problems of single lines that are listed; a file with a wrong key has one in every line."""

_CHECKPOINT_FILES = (
    (("config.json",), "its config"),
    (("model.safetensors", "model.safetensors.index.json"), "safetensors weights"),
)
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def preflight(job: RLJob) -> list[str]:
    """A sentence for each thing that is missing or unreadable."""
    spec = job.spec
    problems = [*_model_problems(spec), *_reward_problems(spec.rollout.reward)]
    if spec.data.reasoning_gym is not None:
        return [*problems, *_reasoning_gym_problems(spec.data.reasoning_gym)]
    return [*problems, *_prompts_problems(spec.data, spec.rollout.reward, _known_characters(spec.model))]


def _model_problems(spec: RLJobSpec) -> Iterator[str]:
    model = spec.model
    if model.tokenizer_path is not None and not Path(model.tokenizer_path).is_dir():
        yield f"spec.model.tokenizerPath: {model.tokenizer_path} is not a folder. Give the folder of a tokenizer."
    if model.path is None:
        return
    folder = Path(model.path)
    if not folder.is_dir():
        yield f"spec.model.path: {folder} is not a folder. Give the folder of a Hugging Face checkpoint."
        return
    for names, what in _CHECKPOINT_FILES:
        if not any((folder / name).is_file() for name in names):
            yield f"spec.model.path: {folder} has no {' or '.join(names)}. Give a checkpoint with {what}."
    if trainer_backend(spec) is TrainerBackend.FSDP:
        problem = model_family_problem(folder / "config.json", packing=spec.training.packing)
        if problem is not None:
            yield problem
    if model.tokenizer_path is None and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        yield f"spec.model.path: {folder} has no tokenizer. Give model.tokenizerPath."


def _reward_problems(reward: RewardSpec) -> Iterator[str]:
    if reward.custom is not None:
        problem = reward_problem(reward.custom)
        if problem is not None:
            yield problem


def _reasoning_gym_problems(gym: ReasoningGymSpec) -> Iterator[str]:
    field = "spec.data.reasoningGym"
    try:
        import reasoning_gym  # here, since it takes a second to import and only such jobs need it
    except ImportError:
        return  # the machine that runs the job has it; this one cannot tell
    try:
        reasoning_gym.create_dataset(gym.dataset, size=gym.size, seed=gym.seed, **gym.parameters)
    except (ValueError, TypeError, AssertionError) as error:
        if gym.dataset not in reasoning_gym.factory.DATASETS:
            near = difflib.get_close_matches(gym.dataset, reasoning_gym.factory.DATASETS, n=1)
            cure = f"Did you mean {near[0]}?" if near else "Give the name of one of its datasets."
            yield f"{field}.dataset: {gym.dataset} is no dataset of reasoning_gym. {cure}"
            return
        shown = json.dumps(gym.parameters, default=str)
        yield f"{field}.parameters: {shown} do not fit the dataset {gym.dataset}: {error}. Correct them."


def _known_characters(model: ModelSpec) -> frozenset[str] | None:
    """The alphabet that prompts must keep to; None where every text has tokens."""
    if model.config is None or model.tokenizer_path is not None:
        return None
    tokenizer = model.config.tokenizer
    return frozenset(alphabet_of(tokenizer)) if tokenizer.kind is TokenizerKind.CHARACTER else None


def _prompts_problems(data: DataSpec, reward: RewardSpec, characters: frozenset[str] | None) -> list[str]:
    assert data.prompts is not None
    label_key = data.label_key if reward.custom is None else None
    try:
        with Path(data.prompts).open("rb") as lines:
            found = _line_problems(lines, data.prompt_key, label_key, characters)
            first = [f"spec.data.prompts: {data.prompts} {problem}" for problem in islice(found, _SHOWN_LINES)]
    except OSError as error:
        return [f"spec.data.prompts: {data.prompts} cannot be read ({error.strerror}). Give the path of a JSONL file."]
    return first


def _line_problems(
    lines: Iterable[bytes], prompt_key: str, label_key: str | None, characters: frozenset[str] | None
) -> Iterator[str]:
    is_empty = True
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        is_empty = False
        problem = _line_problem(line, prompt_key, label_key, characters)
        if problem is not None:
            yield f"line {number}: {problem}"
    if is_empty:
        yield "holds no prompts. Give a file with a JSON object per line."


def _line_problem(line: bytes, prompt_key: str, label_key: str | None, characters: frozenset[str] | None) -> str | None:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return f"is not JSON ({error}). Give a JSON object per line."
    if not isinstance(entry, dict):
        return "is not a JSON object. Give a JSON object per line."
    if prompt_key not in entry:
        return f"has no key {prompt_key!r}. Add it or set data.promptKey."
    if label_key is not None and label_key not in entry:
        return f"has no key {label_key!r}, which the reward compares with. Add it or set data.labelKey."
    return _prompt_problem(entry[prompt_key], prompt_key, characters)


def _prompt_problem(prompt: Any, key: str, characters: frozenset[str] | None) -> str | None:  # noqa: ANN401 - JSON
    if isinstance(prompt, list):
        is_chat = prompt and all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in prompt)
        return None if is_chat else f"{key!r} is no list of chat messages. Give each a role and content."
    if not isinstance(prompt, str) or not prompt:
        return f"{key!r} is neither text nor a list of chat messages. Give one of them."
    strange = next((char for char in prompt if characters is not None and char not in characters), None)
    if strange is not None:
        return f"the character {strange!r} is not in the alphabet. Add it to model.config.tokenizer.alphabet."
    return None
