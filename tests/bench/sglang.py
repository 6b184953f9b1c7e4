"""Tokens per second of a real SGLang server on this CPU: asked plainly, and through the client that rollouts have.

    python -m tests.bench.sglang [--samples 256] [--tokens 64] [--rounds 5]

Both sides ask one server, in turns, for the same samples with log-probs, as many at once as it runs; the best round of
each counts. Plainly: one request per sample, without a stream, whose replies are parsed and not looked at.
"""

from __future__ import annotations

# ruff: noqa: T201 -- a benchmark prints what it found
import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp
import orjson

from rljob_workers.engines.sglang.sglang_client import sampling_body
from tests.integration.engines.contract.calls import load, params
from tests.integration.engines.contract.contenders import SglangContender
from tests.integration.engines.contract.reference import write_versions
from tests.integration.engines.driven import samples_of

PROMPTS = [[5 + i % 90, 6, 7 + i % 50, 8] for i in range(64)]


async def compare(server: SglangContender, folder: Path, num_samples: int, num_tokens: int, rounds: int) -> None:
    """Prints both rates and their ratio."""
    engine = server.client()
    await load(engine, write_versions(folder, 1)[0].folder, 0)
    at_once = asyncio.Semaphore(await engine.capacity())
    one = params(num_tokens)
    prompts = [PROMPTS[index % len(PROMPTS)] for index in range(num_samples)]

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def plainly(prompt: Sequence[int]) -> int:
            sampling = {**sampling_body(one, 0, 1), "ignore_eos": False}
            body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
            async with at_once, session.post(f"{server.url}/generate", json=body) as reply:
                return len(orjson.loads(await reply.read())["output_ids"])

        async def through_the_client(prompt: Sequence[int]) -> int:
            async with at_once:
                [[sample]] = await samples_of(engine, [prompt], [one])
            return len(sample.output_ids)

        async def rate(ask: Callable[[Sequence[int]], Awaitable[int]]) -> float:
            begun = time.perf_counter()
            made = await asyncio.gather(*(ask(prompt) for prompt in prompts))
            return sum(made) / (time.perf_counter() - begun)

        plain, ours = 0.0, 0.0
        for _ in range(rounds):
            plain, ours = max(plain, await rate(plainly)), max(ours, await rate(through_the_client))
    await engine.close()
    print(f"plainly {plain:.0f} tokens/s, through the client {ours:.0f}: {ours / plain:.2f} of it")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.sglang", description=__doc__)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = SglangContender(Path(folder))
        try:
            asyncio.run(compare(server, Path(folder) / "versions", options.samples, options.tokens, options.rounds))
        finally:
            server.close()


if __name__ == "__main__":
    main()
