"""What transformers says of tokens: the truth that engines are held against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import build_config, initial_state, save_folder
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.simulation.policy import fingerprint, places, read_simulated, tensors_of, version_0
from tests.integration.engines.engine_process import talkative_model


class Weights:
    """A version of the model: a folder that engines load, and transformers' model of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model.train(mode=False)
        self.model = model

    def log_probs(self, prompt: Sequence[int], output: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
        """[len(output)]: of each output token."""
        return _chosen(self._logits(prompt, output), output, temperature)

    def left(self, prompt: Sequence[int], temperature: float, top_p: float, top_k: int, min_p: float) -> set[int]:
        """Tokens that may be drawn first, as each of the three bounds leaves them."""
        logits = self._logits(prompt, [0])[0].double() / temperature
        probabilities, order = logits.softmax(-1).sort(descending=True, stable=True)
        stays = probabilities.cumsum(-1) - probabilities < top_p
        stays &= (torch.arange(len(order)) < top_k) & (probabilities >= min_p * probabilities[0])
        return set(order[stays].tolist())

    def nucleus(self, prompt: Sequence[int], output: Sequence[int], top_p: float, top_k: int) -> torch.Tensor:
        """[len(output)] bool: whether each token is one that top-k and top-p leave."""
        probabilities, order = self._logits(prompt, output).softmax(-1).sort(descending=True, stable=True)
        before = probabilities.cumsum(-1) - probabilities
        rank = (order == torch.tensor(output)[:, None]).float().argmax(-1, keepdim=True)
        return (before.gather(1, rank)[:, 0] < top_p + 1e-4) & (rank[:, 0] < top_k)

    def log_probs_after(self, old: Weights, prompt: Sequence[int], output: Sequence[int], start: int) -> torch.Tensor:
        """Of output[start:], drawn by these weights on what `old` had cached of all before the last token before it."""
        return log_probs_on_one_cache([(old, start), (self, len(output))], prompt, output)[start:]

    def _logits(self, prompt: Sequence[int], output: Sequence[int]) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = self.model(torch.tensor([[*prompt, *output]])).logits
        return logits[0, len(prompt) - 1 : -1].float()


class SimulatedWeights(Weights):
    """A version of a simulated policy, whose distributions are written out here in full."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fingerprint = fingerprint(read_simulated(folder))
        self._vocab_size = len(build_tokenizer(talkative_model()))

    def _logits(self, prompt: Sequence[int], output: Sequence[int]) -> torch.Tensor:
        row = np.array([*prompt, *output])
        positions = np.arange(len(prompt), len(row))
        at = places(self._fingerprint, row[positions - 1], positions - 1, self._vocab_size)
        logits = torch.zeros(len(output), self._vocab_size, dtype=torch.float64)
        logits[torch.arange(len(output)), torch.from_numpy(at.liked)] = torch.from_numpy(at.logits)
        return logits


def write_simulated(folder: Path, count: int) -> list[Weights]:
    """Versions of a policy that the simulated engine takes."""
    versions: list[Weights] = []
    for seed in range(1, count + 1):
        (folder / str(seed)).mkdir()
        write_blob(folder / str(seed) / "model.safetensors", tensors_of(version_0(seed)))
        versions.append(SimulatedWeights(folder / str(seed)))
    return versions


def log_probs_on_one_cache(
    spans: Sequence[tuple[Weights, int]], prompt: Sequence[int], output: Sequence[int]
) -> torch.Tensor:
    """[len(output)]: of each output token, where the weights of each span, with its end, go on with the others' cache.

    A token is computed when the one after it is drawn: the last one before a change of weights by the new ones.
    """
    tokens = torch.tensor([[*prompt, *output]])
    past, computed, logits = DynamicCache(), 0, []
    for weights, end in spans:
        upto = len(prompt) + end - 1
        with torch.no_grad():
            answer = weights.model(tokens[:, computed:upto], past_key_values=past, use_cache=True)
        logits.append(answer.logits[0])
        past, computed = answer.past_key_values, upto
    return _chosen(torch.cat(logits)[len(prompt) - 1 :].float(), output, 1.0)


def _chosen(logits: torch.Tensor, output: Sequence[int], temperature: float) -> torch.Tensor:
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(output)[:, None])[:, 0]


def write_versions(folder: Path, count: int) -> list[Weights]:
    """Versions of the model that the torch engine and SGLang are started with."""
    versions = []
    for seed in range(1, count + 1):
        spec = talkative_model(seed=seed)
        tokenizer = build_tokenizer(spec)
        save_folder(folder / str(seed), build_config(spec, tokenizer), tokenizer, initial_state(spec, tokenizer))
        versions.append(Weights(folder / str(seed)))
    return versions


def vary_checkpoint(checkpoint: Path, folder: Path, count: int) -> list[Weights]:
    """Versions of the model of a live server: its own weights, and others with another last norm."""
    versions = [Weights(checkpoint)]
    for version in range(1, count):
        varied = folder / str(version)
        varied.mkdir()
        for file in checkpoint.iterdir():
            if file.suffix == ".safetensors":
                state = load_file(file)
                changed = {
                    name: value * (1 + 0.2 * version) for name, value in state.items() if name == "model.norm.weight"
                }
                save_file({**state, **changed}, varied / file.name, metadata={"format": "pt"})
            elif file.is_file():
                (varied / file.name).symlink_to(file)
        versions.append(Weights(varied))
    return versions
