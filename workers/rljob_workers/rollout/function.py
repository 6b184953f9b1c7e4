"""The contract of a rollout function: what users write, the engine that it gets, and the single turn that is built in.

Users import from here. A function is called once for each sample, and is found and checked before a job starts. It runs
in an event loop of its own, so that one that blocks keeps no engine from its other requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from rljob_workers.data.prompts import Prompt
from rljob_workers.engines.base import FinishReason, SamplingParams, VersionSpan
from rljob_workers.rollout.trajectory import Trajectory, TrajectoryBuilder, Turn
from rljob_workers.user_functions import Signature, is_async, load

if TYPE_CHECKING:
    from rljob_api.spec.rollout import RolloutFunctionSpec

__all__ = [
    "FinishReason",
    "Prompt",
    "RolloutEngine",
    "RolloutFunction",
    "SamplingParams",
    "Trajectory",
    "TrajectoryBuilder",
    "Turn",
    "VersionSpan",
    "load_rollout_function",
    "single_turn",
]

FIELD = "rollout.function"


class RolloutEngine(Protocol):
    """The engine as a rollout function sees it, for one sample."""

    tokenizer: Any
    """Of transformers, for chat templates; this function's own."""

    def begin(self, prompt_ids: Sequence[int]) -> TrajectoryBuilder:
        """A conversation that begins with these tokens, and ends where the job or the model has no more room."""
        ...

    async def generate(self, token_ids: Sequence[int], params: SamplingParams | None = None) -> Turn:
        """What the model draws after these tokens; `params` None: as the job samples.

        Each call of a sample draws with another seed. No token, and LENGTH, where there is no room for one. What the
        engine raises ends the sample, which is begun again; a function need not catch it.
        """
        ...

    async def add_text(self, conversation: TrajectoryBuilder, text: str) -> bool:
        """Adds what a tool wrote, as `add_tokens` does; encodes beside the loop, and no more than there is room for."""
        ...

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, without any that the tokenizer adds. ValueError for what it cannot express.

        Holds the loop up. Of a text that is longer than the model has positions, the first tokens: one more than those.
        """
        ...

    def decode(self, token_ids: Sequence[int], *, special_tokens: bool = False) -> str:
        """The text of tokens, with special ones or without."""
        ...


class RolloutFunction(Protocol):
    """Makes one sample of a prompt."""

    async def __call__(
        self, prompt: Prompt, engine: RolloutEngine, params: SamplingParams, /
    ) -> Trajectory | Sequence[Trajectory]:
        """The sample; `rollout.function.arguments` come by name beside these.

        `params.seed` is another one for each sample, and the same again where a sample is begun again. A ValueError
        fails the job at once with its message. After anything else that is raised, or too long a time outside of the
        engine, the sample is tried again, and is lost in the end: it stays as a row that counts nowhere. Several
        trajectories for one sample are not possible yet.
        """
        ...


async def single_turn(prompt: Prompt, engine: RolloutEngine, params: SamplingParams) -> Trajectory:
    """A response in one go: what a job without a function does, which asks for many prompts at once."""
    conversation = engine.begin(prompt.token_ids)
    conversation.add_turn(await engine.generate(conversation.token_ids, params))
    return conversation.finish()


def load_rollout_function(spec: RolloutFunctionSpec) -> RolloutFunction:
    """The function that `spec` names. ValueError: it is not there, is not async, or does not take its arguments."""
    example = "async def rollout(prompt, engine, params): ..."
    wanted = Signature(3, "prompt, engine, params", example, tuple(spec.arguments))
    function = load(f"{FIELD}.function", spec.function, f"{FIELD}.path", spec.path, wanted)
    if not is_async(function):
        raise ValueError(
            f"{FIELD}.function: {spec.function} is not async, so that a tool that it waits for would hold up all other"
            f" samples. Write it as `{example}`."
        )
    return cast("RolloutFunction", function)
