"""Prompts from reasoning_gym: procedural tasks that are made when asked for, and scored by their own dataset."""

from __future__ import annotations

import difflib
import threading
from typing import TYPE_CHECKING, Any

from rljob_workers.data.prompts import Prompt, RowSource, item_at

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

    from rljob_api.spec.data import DataSpec, ReasoningGymSpec
    from rljob_workers.data.prompts import PromptEncoder

_OWN_PARAMETERS = ("size", "seed")


class ReasoningGymPrompts(RowSource):
    """Task i of a dataset is a function of its name, parameters, seed and i; the label is the whole entry."""

    def __init__(self, spec: DataSpec, encoder: PromptEncoder) -> None:
        """Raises ValueError for an unknown dataset or parameters that it refuses."""
        assert spec.reasoning_gym is not None
        self._name = spec.reasoning_gym.dataset
        self._shuffle_seed = spec.shuffle_seed
        self._size = spec.reasoning_gym.size
        self._encoder = encoder
        self._dataset = build_dataset(spec.reasoning_gym)
        # The role asks from several threads, and nothing promises that a dataset makes tasks without common state.
        self._making = threading.Lock()

    def __len__(self) -> int:
        return self._size

    def at(self, index: int, /) -> Prompt:
        """Makes and tokenises one task."""
        return self.of_row(item_at(index, self._size, self._shuffle_seed), index)

    def of_row(self, row: int, index: int) -> Prompt:
        """See the base."""
        with self._making:
            entry: dict[str, Any] = self._dataset[row]
        text, token_ids, messages = self._encoder.encode(entry["question"], f"task {row} of {self._name}")
        return Prompt(index, text, token_ids, entry, messages, dataset=self._name, source=self._name)

    def score(self, answer: str, entry: dict[str, Any]) -> float:
        """The dataset's own `score_answer`; may raise on text that is no answer."""
        return float(self._dataset.score_answer(answer, entry))


def build_dataset(spec: ReasoningGymSpec) -> ProceduralDataset:
    """The dataset; importing the package takes about a second, so it is done here."""
    from reasoning_gym.factory import DATASETS, create_dataset

    if spec.dataset not in DATASETS:
        close = difflib.get_close_matches(spec.dataset, DATASETS, n=3)
        hint = f"Did you mean {' or '.join(close)}?" if close else "See the package's list of datasets."
        raise ValueError(f"data.reasoningGym.dataset: reasoning_gym has no dataset {spec.dataset!r}. {hint}")
    own = [name for name in _OWN_PARAMETERS if name in spec.parameters]
    if own:
        raise ValueError(
            f"data.reasoningGym.parameters: {own[0]} has a field of its own. Set data.reasoningGym.{own[0]}."
        )
    try:
        return create_dataset(spec.dataset, **spec.parameters, size=spec.size, seed=spec.seed)
    except (TypeError, AssertionError, ValueError) as error:
        raise ValueError(
            f"data.reasoningGym.parameters: {spec.dataset} refuses {spec.parameters}: {error}."
            " See the dataset's config in reasoning_gym."
        ) from error
