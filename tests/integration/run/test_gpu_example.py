"""The example of eight GPUs, shrunk to what a CPU does in a minute: the same manifest, with the real SGLang.

What is smaller: the model (random, of the same family, with a tokenizer of the same form), numbers, and no devices.
"""

import json
from pathlib import Path
from typing import Any

import yaml
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rljob_api.spec.model import ModelConfig, ModelSpec
from rljob_workers.models.building import build_config, initial_state, save_folder
from tests.integration.run.job import RunningJob

EXAMPLES = Path(__file__).parents[3] / "examples"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LONGEST = 256
"""Tokens of a row; the longest problem has some 120 with this tokenizer."""


def save_tiny_qwen3(folder: Path) -> Path:
    """A folder as the hub has it: byte-level BPE, the ends of turns as tokens of their own, a chat template."""
    problems = (EXAMPLES / "grade-school/problems.jsonl").read_text().splitlines()
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    bpe.train_from_iterator(
        (text for line in problems for text in json.loads(line).values()),
        trainers.BpeTrainer(vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE
    )
    spec = ModelSpec(config=ModelConfig(max_position_embeddings=LONGEST))
    save_folder(folder, build_config(spec, tokenizer), tokenizer, initial_state(spec, tokenizer))
    return folder


def shrunk(manifest: dict[str, Any], model: Path) -> dict[str, Any]:
    """Two ranks train and two engines generate, on the CPU, in float32."""
    spec = manifest["spec"]
    assert [spec["roles"][role].pop("gpus") for role in ("actor", "rollout")] == [4, 4]
    spec["model"] = {"path": str(model)}
    spec["data"]["prompts"] = str(EXAMPLES / spec["data"]["prompts"])
    spec["rollout"] |= {"numRollouts": 3, "batchSize": 4, "samplesPerPrompt": 2}
    spec["rollout"]["sampling"]["maxNewTokens"] = 24
    spec["rollout"]["reward"]["custom"]["path"] = str(EXAMPLES / "grade-school")
    spec["training"] |= {"globalBatchSize": 8, "maxTokensPerMicroBatch": 1024}
    spec["roles"]["actor"]["ranksPerPod"] = spec["roles"]["rollout"]["ranksPerPod"] = 2
    engine = spec["roles"]["rollout"]["engine"]
    del engine["python"]  # a fork has the environment of the job
    engine["args"] = [f"--context-length={LONGEST}" if "context-length" in arg else arg for arg in engine["args"]]
    spec["checkpoint"]["everySteps"] = 3
    return manifest


def test_the_shrunk_example_runs_to_its_end_on_two_real_engines(tmp_path: Path) -> None:
    manifest = yaml.safe_load((EXAMPLES / "qwen3-4b-8xh100.yaml").read_text())
    with RunningJob(tmp_path, shrunk(manifest, save_tiny_qwen3(tmp_path / "model")), options=["--audit"]) as job:
        job.assert_succeeded()
        job.assert_epoch(1)
        for index in (0, 1):
            log = (job.out / f"logs/rollout-0.engine.{index}.log").read_text()
            assert "ServerArgs" in log or "server_args" in log, log[:2000]
        assert [line["step"] for line in job.metrics()] == [0, 1, 2]
        policy = job.out / "checkpoints" / json.loads((job.out / "checkpoints/record.json").read_text())["folder"]
        assert json.loads((policy / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
