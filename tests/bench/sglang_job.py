"""Share of a bare SGLang server's tokens per second that a whole job gets out of it.

    python -m tests.bench.sglang_job [--steps 4] [--tokens 256] [--batch 16]

A job on one server, whose scheduler (the process that computes) has a CPU to itself, as it has GPUs elsewhere, and
answers so long that generation is the slowest stage. Then the same model on a server by itself, its scheduler on that
CPU, asked plainly for as many samples at once. One after the other, in one run. Weights move on after each step, and
are proven each time.
"""

from __future__ import annotations

# ruff: noqa: T201 -- a benchmark prints what it found
import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from rljob_workers.engines.sglang.sglang_client import sampling_body
from tests.integration.engines.contract.calls import load, params
from tests.integration.engines.contract.contenders import SglangContender
from tests.integration.engines.contract.reference import write_versions
from tests.integration.engines.engine_process import talkative_model
from tests.integration.run.job import RunningJob, make_manifest

SAMPLES_PER_PROMPT = 8
PROMPT = [1, 2, 10]
"""As long as the job's prompts."""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.sglang_job", description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16, help="prompts of a step, of which each has 8 samples")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as name:
        job, first = rate_of_job(Path(name), options.steps, options.tokens, options.batch)
        print(f"the first step was trained {first:.1f} s after the start", flush=True)
        bare = rate_of_server(Path(name), options.tokens, options.batch * SAMPLES_PER_PROMPT)
    print(f"bare server {bare:.0f} tokens/s, the job {job:.0f}: {job / bare:.2f} of it")


def rate_of_job(folder: Path, steps: int, num_tokens: int, batch: int) -> tuple[float, float]:
    """Tokens of answers per second, from the second step on, and the seconds to the end of the first step."""
    config = talkative_model().config
    assert config is not None
    rows = batch * SAMPLES_PER_PROMPT
    manifest = make_manifest(
        folder,
        rollout={
            "numRollouts": 100_000,
            "batchSize": batch,
            "samplesPerPrompt": SAMPLES_PER_PROMPT,
            "sampling": {"maxNewTokens": num_tokens},
        },
        training={"globalBatchSize": rows, "microBatchSize": rows},
        algorithm={"kl": {"coefficient": 0}},
        checkpoint={"everySteps": 1000},
        telemetry={"sampleLog": False},
    )
    spec: dict[str, Any] = manifest["spec"]
    spec["model"] = {"config": config.model_dump(by_alias=True, exclude_none=True, mode="json")}
    spec["roles"] = {"rollout": {"engine": {"kind": "SGLang"}}, "actorFwd": None}
    begun = time.monotonic()
    with RunningJob(folder, manifest) as job:
        job.wait_for_step(0, 300)
        first = time.monotonic() - begun
        computes = scheduler(int(job.pod("rollout")["enginePid"]))
        pin(descendants(job.process.pid) - computes, rest_of_cpus())
        pin(computes, [first_cpu()])
        start = job.step() + 2  # what was made before had other CPUs
        job.wait_for_step(start + steps, 900)
        lines = {line["step"]: line for line in job.metrics()}
    made = sum(lines[step]["tokens"] - rows * len(PROMPT) for step in range(start + 1, start + steps + 1))
    return made / (lines[start + steps]["time"] - lines[start]["time"]), first


def rate_of_server(folder: Path, num_tokens: int, num_samples: int) -> float:
    """The best of three rounds of as many samples as a step has, twice."""
    server = SglangContender(folder)
    try:
        computes = scheduler(server.pid)
        pin({os.getpid(), server.pid, *descendants(server.pid)} - computes, rest_of_cpus())
        pin(computes, [first_cpu()])
        return asyncio.run(ask(server, folder, num_tokens, 2 * num_samples))
    finally:
        server.close()


async def ask(server: SglangContender, folder: Path, num_tokens: int, num_samples: int) -> float:
    """One request per sample, without a stream; replies are parsed and not looked at."""
    engine = server.client()
    await load(engine, write_versions(folder / "versions", 1)[0].folder, 0)
    at_once = asyncio.Semaphore(await engine.capacity())
    await engine.close()
    one = params(num_tokens, temperature=1.0)

    async def sample(session: aiohttp.ClientSession, seed: int) -> int:
        request = {"input_ids": PROMPT, "sampling_params": sampling_body(one, seed, 1), "return_logprob": True}
        async with at_once, session.post(f"{server.url}/generate", json=request) as reply:
            return len(orjson.loads(await reply.read())["output_ids"])

    best = 0.0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for turn in range(3):
            begun = time.perf_counter()
            made = await asyncio.gather(*(sample(session, turn * num_samples + one) for one in range(num_samples)))
            best = max(best, sum(made) / (time.perf_counter() - begun))
    return best


def scheduler(server: int) -> set[int]:
    """The child of a server that computes."""
    return {child for child in descendants(server) if b"scheduler" in Path(f"/proc/{child}/cmdline").read_bytes()}


def first_cpu() -> int:
    """The scheduler's."""
    return min(os.sched_getaffinity(1))


def rest_of_cpus() -> list[int]:
    """All others; the same where there is only one."""
    cpus = sorted(os.sched_getaffinity(1))
    return cpus[1:] or cpus


def descendants(pid: int) -> set[int]:
    """Every process that it, or one of its children, has started and that lives."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found |= {child, *descendants(child)}
    return found


def pin(pids: Iterable[int], cpus: list[int]) -> None:
    """Every thread of them."""
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(task.name), cpus)


if __name__ == "__main__":
    main()
