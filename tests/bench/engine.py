"""The torch engine beside transformers' continuous batching, and by itself on the shapes that rollouts have.

    python -m tests.bench.engine [--threads 2] [--rounds 5]

Both sides run in one process, in turns, on the same random weights and prompts with log-probs; the best round of each
counts. The rollout shapes run over HTTP against a server process with one thread, as `rljob run` has it.
"""

from __future__ import annotations

# ruff: noqa: T201 -- a benchmark prints what it found
import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch
import transformers
from transformers import GenerationConfig, Qwen3Config
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

from rljob_api.model_files.decoder_config import read_config
from rljob_api.names import Lineage, WeightVersion
from rljob_api.spec.model import ModelConfig, ModelSpec, TokenizerConfig
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import SamplingParams
from rljob_workers.engines.torch_engine.decoder import fuse_weights, geometry_of
from rljob_workers.engines.torch_engine.requests import Batch, PromptGroup
from rljob_workers.engines.torch_engine.scheduler import Limits, Scheduler
from tests.integration.engines.driven import DrivenEngine, torch_engine
from tests.integration.engines.engine_process import engine_process, open_listener, url_of, write_weights

VOCAB, PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 512, 16, 32, 128
WEIGHT = WeightId(lineage=Lineage(1), version=WeightVersion(0))


def peer_shape() -> Qwen3Config:
    """4 layers, hidden 128."""
    return Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )


def ours(model: Qwen3ForCausalLM, prompts: list[list[int]]) -> Callable[[], int]:
    """Generates for all prompts; returns the number of tokens."""
    geometry = geometry_of(read_config(model.config.to_dict()), torch.float32)
    scheduler = Scheduler(geometry, Limits())
    scheduler.install(fuse_weights(model.state_dict(), geometry), WEIGHT)

    def generate() -> int:
        groups = [
            PromptGroup(str(index), prompt, 1, index, NEW_TOKENS, 1.0, 1.0, 0, frozenset())
            for index, prompt in enumerate(prompts)
        ]
        batch = Batch(groups)
        with torch.inference_mode():
            scheduler.submit(batch)
            while scheduler.has_work:
                scheduler.step()
        if batch.error is not None:
            raise batch.error
        return int(batch.lengths.sum())

    return generate


def continuous_batching(model: Qwen3ForCausalLM, prompts: list[list[int]]) -> Callable[[], int]:
    """The same with transformers; SDPA was the fastest of its attentions here."""
    peer = Qwen3ForCausalLM(model.config)
    peer.load_state_dict(model.state_dict())
    peer.train(mode=False)
    peer.set_attn_implementation("sdpa")
    settings = GenerationConfig(  # type: ignore[no-untyped-call] # transformers has no types here
        max_new_tokens=NEW_TOKENS, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=0
    )
    batching = ContinuousBatchingConfig(page_size=32, num_blocks=256, max_batch_tokens=1024, return_logprobs=True)

    def generate() -> int:
        with torch.no_grad():
            found = peer.generate_batch(
                inputs=prompts,
                generation_config=settings,
                continuous_batching_config=batching,
                persistent_manager=True,
                warmup=False,
                progress_bar=False,
            )
        return sum(len(one.generated_tokens) for one in found.values())

    return generate


def best_rates(sides: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Tokens a second of each side's best round, sides in turns; a first round warms up."""
    rates = dict.fromkeys(sides, 0.0)
    for turn in range(rounds + 1):
        for name, generate in sides.items():
            begin = time.perf_counter()
            rate = generate() / (time.perf_counter() - begin)
            rates[name] = max(rates[name], rate if turn else 0.0)
    return rates


def rollout_model() -> ModelSpec:
    """The quickstart's sizes with 64 tokens, so that an untrained model ends with chance 1/64 a token."""
    alphabet = "".join(chr(code) for code in range(33, 33 + 62))
    return ModelSpec(config=ModelConfig(vocab_size=64, tokenizer=TokenizerConfig(alphabet=alphabet)))


def rollout_seconds(engine: DrivenEngine, max_new_tokens: int, rounds: int) -> tuple[float, float]:
    """Best and median seconds of 32 prompts of 4 tokens x 16 samples."""
    chance = random.Random(0)
    seconds = []
    for turn in range(rounds):
        prompts = [[chance.randrange(62) for _ in range(4)] for _ in range(32)]
        params = [SamplingParams(1.0, 1.0, 0, max_new_tokens, (), 16, turn * 512 + 16 * index) for index in range(32)]
        begin = time.perf_counter()
        engine.generate(prompts, params, deadline=time.monotonic() + 300)
        seconds.append(time.perf_counter() - begin)
    seconds.sort()
    return seconds[0], seconds[len(seconds) // 2]


def compare(threads: int, rounds: int) -> None:
    """Prints tokens a second of both sides and their ratio."""
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call] # transformers has no types here
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(peer_shape())
    model.train(mode=False)
    chance = random.Random(1)
    prompts = [[chance.randrange(3, VOCAB) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)]
    sides = {"transformers": continuous_batching(model, prompts), "torch engine": ours(model, prompts)}
    rates = best_rates(sides, rounds)
    print(f"4 layers, hidden 128, {PROMPTS} prompts of {PROMPT_TOKENS}, {NEW_TOKENS} new tokens, {threads} threads")
    for name, rate in rates.items():
        print(f"  {name:14s} {rate:9.0f} tok/s")
    print(f"  ratio          {rates['torch engine'] / rates['transformers']:9.1f}x", flush=True)


def rollouts(rounds: int) -> None:
    """Prints samples a second of both rollout shapes, HTTP and JSON included."""
    model = rollout_model()
    with (
        tempfile.TemporaryDirectory() as folder,
        open_listener() as listener,
        engine_process(listener, model),
        closing(torch_engine(url_of(listener))) as engine,
    ):
        engine.update_weights(write_weights(Path(folder), model), WEIGHT, deadline=time.monotonic() + 60)
        for name, max_new_tokens, turns in (
            ("quickstart, 4 tokens", 4, 20 * rounds),
            ("long tail, cut at 256", 256, rounds),
        ):
            best, median = rollout_seconds(engine, max_new_tokens, turns)
            print(
                f"{name:22s} 32 x 16 samples: best {best * 1e3:7.1f} ms ({512 / best:6.0f} samples/s), "
                f"median {median * 1e3:7.1f} ms ({512 / median:6.0f} samples/s)",
                flush=True,
            )


def main() -> None:
    """Reads the options and runs both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    compare(options.threads, options.rounds)
    rollouts(options.rounds)


if __name__ == "__main__":
    main()
