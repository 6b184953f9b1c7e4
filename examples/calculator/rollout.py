"""Two turns and a tool: the model says a number, a calculator multiplies it, and the model reads the product off.

`37=` is the prompt; `37` is drawn, `>074=` is written by the calculator, `074` is drawn. The calculator's tokens are in
the row, masked: nothing is learnt from them.
"""

from __future__ import annotations

from dataclasses import replace

from rljob_workers.rollout.function import Prompt, RolloutEngine, SamplingParams, Trajectory

NUMBER_DIGITS = 2
PRODUCT_DIGITS = 3


async def ask_calculator(
    prompt: Prompt, engine: RolloutEngine, params: SamplingParams, *, factor: int = 2
) -> Trajectory:
    """Half of the reward is for the number that is asked about, digit by digit, and half for reading the answer."""
    conversation = engine.begin(prompt.token_ids)
    question = await engine.generate(conversation.token_ids, replace(params, max_new_tokens=NUMBER_DIGITS))
    conversation.add_turn(question)

    asked = engine.decode(question.token_ids)
    product = multiply(asked, factor)
    await engine.add_text(conversation, f">{product}=")

    answer = await engine.generate(conversation.token_ids, replace(params, max_new_tokens=PRODUCT_DIGITS))
    conversation.add_turn(answer)

    wanted = prompt.text.removesuffix("=")
    right = share(asked, wanted)
    read = share(engine.decode(answer.token_ids), product) if product.isdigit() else 0.0
    return conversation.finish(reward=(right + read) / 2, metrics={"calculator/asked": right, "calculator/read": read})


def multiply(number: str, factor: int) -> str:
    """The calculator; a tool that takes its time would be awaited here."""
    if len(number) != NUMBER_DIGITS or not number.isdigit():
        return "?" * PRODUCT_DIGITS
    return f"{int(number) * factor:0{PRODUCT_DIGITS}d}"


def share(found: str, wanted: str) -> float:
    """Of characters in their place."""
    return sum(one == other for one, other in zip(found, wanted, strict=False)) / len(wanted)
