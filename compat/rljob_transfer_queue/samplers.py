"""Which rows a claim takes. The control plane does the sampling; these only name the method.

One sampler is set for the whole queue by `init`, as code for the package TransferQueue has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

_REFUSED = (
    "controller.sampler: {given} is a sampler of your own, which would have to run inside the control Redis. Use"
    " SequentialSampler, GRPOGroupNSampler, RankAwareSampler or SeqlenBalancedSampler, or choose rows yourself from"
    ' get_meta(mode="force_fetch") and BatchMeta.select_samples.'
)


@dataclass(frozen=True, slots=True)
class Question:
    """What a claim asks beyond task, partition, fields and number of rows."""

    group: int = 1
    """Rows of a group: only whole groups are taken."""
    rank: int | None = None
    """With `index`: who asks the same again gets the same rows. None: every question is a new one."""
    index: int = 0
    ranks: int = 0
    """The batch is dealt to so many ranks; 0: it is for who asks."""


class BaseSampler:
    """Base of the samplers there are; one of your own is refused by `init`."""

    name: ClassVar[str] = ""

    def question(self, config: Mapping[str, Any]) -> Question:
        """From a `sampling_config`."""
        raise NotImplementedError(_REFUSED.format(given=type(self).__name__))

    def settings(self) -> dict[str, int]:
        """Its own numbers."""
        return {}


class SequentialSampler(BaseSampler):
    """The rows that came first; every question gets new ones. Takes no sampling_config."""

    name = "SequentialSampler"

    def question(self, config: Mapping[str, Any]) -> Question:  # noqa: ARG002 - see the class
        """Nothing special."""
        return Question()


class RankAwareSampler(BaseSampler):
    """Every client that asks for the same (task, dp_rank, batch_index) of a partition gets the same rows."""

    name = "RankAwareSampler"

    def question(self, config: Mapping[str, Any]) -> Question:
        """Needs `dp_rank` and `batch_index`."""
        return Question(rank=_number(config, "dp_rank", self), index=_number(config, "batch_index", self))


class GRPOGroupNSampler(BaseSampler):
    """Whole groups: rows 0 to n-1 of a partition, n to 2n-1 and so on, by the order in which they were put."""

    name = "GRPOGroupNSampler"

    def __init__(self, n_samples_per_prompt: int = 1) -> None:
        self.n_samples_per_prompt = _positive("n_samples_per_prompt", n_samples_per_prompt)

    def settings(self) -> dict[str, int]:
        """The size of a group."""
        return {"n_samples_per_prompt": self.n_samples_per_prompt}

    def question(self, config: Mapping[str, Any]) -> Question:
        """With `dp_rank` (and `batch_index`), the same question gets the same rows."""
        if config.get("dp_rank") is None:
            return Question(self.n_samples_per_prompt)
        return Question(
            self.n_samples_per_prompt, _number(config, "dp_rank", self), int(config.get("batch_index") or 0)
        )


class SeqlenBalancedSampler(GRPOGroupNSampler):
    """Whole groups for all data-parallel ranks at once, dealt so that the ranks' sums of `total_lengths` come out near.

    `total_lengths` is a number in the custom_meta of each row (1 where it is missing). `batch_size` is one rank's.
    """

    name = "SeqlenBalancedSampler"

    def __init__(self, n_samples_per_prompt: int = 1, dp_size: int = 1) -> None:
        super().__init__(n_samples_per_prompt)
        self.dp_size = _positive("dp_size", dp_size)

    def settings(self) -> dict[str, int]:
        """The size of a group and the number of ranks."""
        return {"n_samples_per_prompt": self.n_samples_per_prompt, "dp_size": self.dp_size}

    def question(self, config: Mapping[str, Any]) -> Question:
        """`dp_rank` and `batch_index`, 0 where they are missing."""
        rank = int(config.get("dp_rank") or 0)
        if not 0 <= rank < self.dp_size:
            raise ValueError(f"sampling_config: dp_rank {rank} is not below dp_size {self.dp_size} of the sampler.")
        return Question(self.n_samples_per_prompt, rank, int(config.get("batch_index") or 0), self.dp_size)


_KNOWN = {kind.name: kind for kind in (SequentialSampler, RankAwareSampler, GRPOGroupNSampler, SeqlenBalancedSampler)}


def make_sampler(given: object) -> BaseSampler:
    """From a name, a class or an object, as `init` takes it."""
    if isinstance(given, str) and given in _KNOWN:
        return _KNOWN[given]()
    if isinstance(given, type) and given in _KNOWN.values():
        made: BaseSampler = given()
        return made
    if isinstance(given, BaseSampler) and type(given) in _KNOWN.values():
        return given
    raise ValueError(_REFUSED.format(given=given))


def sampler_settings(sampler: BaseSampler) -> dict[str, Any]:
    """For the control plane: name and numbers."""
    return {"name": sampler.name, **sampler.settings()}


def sampler_from_settings(settings: Mapping[str, Any]) -> BaseSampler:
    """The reverse."""
    numbers = {key: value for key, value in settings.items() if key != "name"}
    return _KNOWN[settings["name"]](**numbers)


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name}: {value} must be positive.")
    return value


def _number(config: Mapping[str, Any], name: str, sampler: BaseSampler) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 0:
        raise ValueError(
            f"sampling_config: {name} is {value!r}, but {sampler.name} needs a number from 0 on. Pass"
            f" sampling_config={{'dp_rank': ..., 'batch_index': ...}} to get_meta."
        )
    return value
