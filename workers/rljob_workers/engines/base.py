"""The contract of an inference engine: its calls, the events of a request, their values and what engines raise.

Read by rollout, training and every backend. Torch-free; knows no backend, no coordinator and no queue.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from typing import Any, ClassVar, TypeAlias, TypeVar

import xxhash

from rljob_api.spec.weights import Interruption
from rljob_api.wire.identity import WeightId
from rljob_workers.models.weights import Weights, WeightSource


class EngineError(Exception):
    """Base of everything an engine client raises."""


class EngineAway(EngineError):
    """No process listens at the server's port: it is being started, and has not received the request."""


class EngineGone(EngineError):
    """The server died, or another incarnation of it answers."""


class EngineTimeout(EngineError):
    """No answer within the deadline."""


class EngineStalled(EngineTimeout):
    """It has requests and has made no token of any for too long."""

    def __init__(self, sentence: str, *, found_at: float) -> None:
        """`found_at` in monotonic seconds: an incarnation that was started later is not meant."""
        super().__init__(sentence)
        self.found_at = found_at


class EngineEmptied(EngineError):
    """The request was aborted with all others: the rank drops what its engine had made."""


class EngineRefused(EngineError):
    """The server refuses the request, with its sentence."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one prompt is sampled: `num_samples` samples, the i-th drawn with seed `seed + i`.

    A sample's tokens depend on weights, prompt, these parameters and its own seed only: with the torch engine always,
    with SGLang where it is started with --enable-deterministic-inference.
    """

    temperature: float
    """0: the likeliest token each time, whatever top_p, top_k and min_p are; log-probs are then of temperature 1."""
    top_p: float
    top_k: int
    """0 means all tokens."""
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    num_samples: int
    seed: int
    stop: tuple[str, ...] = ()
    """Texts that end a sample, which has the tokens of the text as well."""
    min_p: float = 0.0
    """Tokens with at least this share of the likeliest one's chance are drawn; 0 means all."""


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens [start, end) of the output were made under `weight`."""

    weight: WeightId
    start: int
    end: int


class FinishReason(StrEnum):
    """Why a sample ended, or that it did not."""

    STOP = "stop"
    """A token or a text that ends it."""
    LENGTH = "length"
    """As long as it may be."""
    ABORT = "abort"
    """It goes on, or was cut off by a caller; it has the tokens that were made until then."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One generated sequence."""

    output_ids: list[int]
    log_probs: list[float]
    """One per output token, from logits at temperature, before top-p, top-k and min-p."""
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]
    """In order, without gaps."""

    @property
    def goes_on(self) -> bool:
        """Whether it has not ended: more may be drawn behind it."""
        return self.finish_reason is FinishReason.ABORT


NOT_BEGUN = Sample([], [], FinishReason.ABORT, ())
"""A sample without a token."""


def continued(begun: Sample, more: Sample) -> Sample:
    """The sample as a whole: `more` was drawn behind `begun`."""
    offset = len(begun.output_ids)
    if not offset:
        return more
    spans = joined_spans(begun.spans, more.spans, offset)
    return Sample([*begun.output_ids, *more.output_ids], [*begun.log_probs, *more.log_probs], more.finish_reason, spans)


def joined_spans(first: tuple[VersionSpan, ...], more: Sequence[VersionSpan], offset: int) -> tuple[VersionSpan, ...]:
    """Spans of both, those of `more` moved by `offset`; one that spans the seam is one."""
    moved = [VersionSpan(span.weight, span.start + offset, span.end + offset) for span in more]
    if first and moved and first[-1].weight == moved[0].weight:
        return (*first[:-1], replace(first[-1], end=moved[0].end), *moved[1:])
    return (*first, *moved)


def continued_seed(seed: int, num_tokens: int) -> int:
    """Seed of what follows the first tokens of the sample that has this seed.

    Another one, since an engine counts its draws from the end of what it is sent: with the same seed it would draw by
    the numbers that the first tokens were drawn by.
    """
    return xxhash.xxh3_64_intdigest(f"{seed}+{num_tokens}".encode()) >> 20


@dataclass(frozen=True, slots=True)
class Drawn:
    """More tokens of a request have been made. Each token is counted once, shown or not."""

    num_tokens: int


@dataclass(frozen=True, slots=True)
class Grown:
    """Samples that go on have more tokens."""

    samples: Mapping[int, Sample]
    """Number of each -> what follows the tokens that were shown of it before; its spans begin at 0."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Samples have ended by themselves."""

    samples: Mapping[int, Sample]
    """Number of each -> the whole sample, whatever was shown of it before."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Samples were aborted at the engine."""

    samples: Mapping[int, Sample]
    """As of `Ended`, with the tokens that were made until then."""


Event: TypeAlias = Drawn | Grown | Ended | GivenUp
"""An event has all samples that come together: a chunk of tokens costs no object of its own."""


class Shown(Enum):
    """What of a request comes before the ends of its samples."""

    ENDS = auto()
    """Nothing but the count of tokens."""
    TOKENS = auto()
    """Tokens as they are drawn, each with the weights that drew it."""


class Engine(ABC):
    """Client of one engine server; calls may overlap, all in one event loop.

    Each raises EngineGone (the server died, or another incarnation of it answered: nothing of the call counts) and
    EngineRefused (with the server's sentence). Those with a deadline (monotonic seconds) also raise EngineTimeout.
    """

    prompts_per_request: ClassVar[int | None]
    """Most prompts that one `generate` takes. None: as many as the caller likes, and a larger request is cheaper. 1:
    each sample is a request of its own at the server, so that nothing is gained by asking for several at once."""

    @abstractmethod
    def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], shown: Shown = Shown.ENDS
    ) -> AsyncGenerator[Event]:
        """Events of one request, until the last of its samples has ended.

        Samples are numbered in the order of prompts. Each is in one `Ended` or `GivenUp`, as soon as the engine knows.
        `Drawn` comes as often as the engine knows, and at least once a second while it makes tokens. There is no
        deadline: who closes the iterator before its end aborts the request at the server, also while that is paused.
        """

    @abstractmethod
    async def update_weights(
        self, weights: Weights[WeightSource], interruption: Interruption, *, deadline: float
    ) -> None:
        """Loads weights; `interruption` decides what becomes of samples that run meanwhile.

        SourceNotTaken for a source that this kind of engine cannot read. On any error, and when cancelled, the server
        holds no weights that count: `held` is not theirs.
        """

    @abstractmethod
    async def score(self, tokens: Sequence[int], *, deadline: float) -> list[float]:
        """Log-probs of tokens[1:] at temperature 1, each given those before it, under the weights that are held."""

    @abstractmethod
    async def held(self) -> WeightId | None:
        """What the server holds now; None before the first full load or after an update that was cut off."""

    @abstractmethod
    async def max_tokens(self) -> int:
        """Positions of the model: prompt and output together."""

    @abstractmethod
    async def capacity(self) -> int:
        """Samples that the server runs at once; more of them wait in it."""

    @abstractmethod
    async def abort_all(self) -> None:
        """Aborts every request, drops the cache and ends any pause (a restart of the rank or of the job)."""

    @abstractmethod
    async def close(self) -> None:
        """Closes connections. The server goes on."""


_Answer = TypeVar("_Answer")


async def all_or_none(requests: Iterable[Coroutine[Any, Any, _Answer]]) -> list[_Answer]:
    """The answers, in order. Raises what the first failure raised, once the others are cancelled and gone."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(request) for request in requests]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


def sampling_fields(params: SamplingParams) -> dict[str, Any]:
    """Fields of `sampling_params`: all are set, so that no default of the server or of its model counts."""
    return {
        "max_new_tokens": params.max_new_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or -1,
        "min_p": params.min_p,
        "stop_token_ids": list(params.stop_token_ids),
        "stop": list(params.stop),
    }


FINISH_CODES: Mapping[str, int] = {FinishReason.STOP: 0, FinishReason.LENGTH: 1, FinishReason.ABORT: 2}
"""Finish reason of a sample -> its number in the column `finish_reasons`. Numbers are never given twice."""


FINISH_LENGTH = FINISH_CODES[FinishReason.LENGTH]
