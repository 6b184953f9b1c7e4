"""TRL's GRPOTrainer on the model, tokenizer, task, batch and loss of one of our manifests.

    python -m tests.bench.trl_grpo examples/quickstart.yaml --steps 60 --threads 2

Prints a JSON line per step: {"step", "time", "samples", "tokens", "reward"}. Time is monotonic, in seconds.
Nothing is downloaded: model and tokenizer are built from the manifest's config, weights drawn from its seed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api.manifest import load_manifest
from rljob_workers.trainers.objectives import bounds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rljob_api.spec import RLJobSpec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(arguments.threads)
    spec = load_manifest(arguments.manifest).spec
    with tempfile.TemporaryDirectory() as folder:
        _trainer(spec, arguments.manifest.parent, Path(folder), arguments.steps).train()


def _trainer(spec: RLJobSpec, base: Path, folder: Path, steps: int) -> Any:
    try:
        from datasets import Dataset
        from trl import GRPOTrainer
    except ModuleNotFoundError as error:
        sys.exit(f"tests.bench.trl_grpo: the package {error.name} is not installed. Run scripts/install bench.")
    from rljob_workers.models.building import build_config, initial_state, save_folder
    from rljob_workers.models.tokenizers import build_tokenizer

    tokenizer = build_tokenizer(spec.model)
    model = folder / "model"  # a folder, since TRL loads its reference model from where the policy came from
    save_folder(model, build_config(spec.model, tokenizer), tokenizer, initial_state(spec.model, tokenizer))
    assert spec.data.prompts is not None
    rows = [json.loads(line) for line in (base / spec.data.prompts).read_text().splitlines()]
    tokenizer.chat_template = None  # the prompts are plain texts
    _end_answers(tokenizer, spec.rollout.sampling.stop_token_ids)
    return GRPOTrainer(
        model=str(model),
        args=_settings(spec, folder, steps),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        reward_funcs=_reward(spec),
        callbacks=[_stamps(spec)],
    )


def _end_answers(tokenizer: Any, stop_token_ids: Sequence[int]) -> None:
    """TRL masks what follows the tokenizer's end, and knows no second one: it becomes the manifest's own.

    The reward sees a character that ends an answer: only an added token is left out of the text.
    """
    assert len(stop_token_ids) <= 1, "TRL knows one end"
    for token_id in stop_token_ids:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(token_id)


def _settings(spec: RLJobSpec, folder: Path, steps: int) -> Any:
    from trl import GRPOConfig

    samples = spec.rollout.batch_size * spec.rollout.samples_per_prompt
    optimizer, algorithm = spec.training.optimizer, spec.algorithm
    assert spec.training.global_batch_size == samples, "one optimizer step a rollout, as TRL does by default"
    micro_batch_size = spec.training.micro_batch_size
    assert micro_batch_size is not None, "TRL knows no budget of tokens"
    return GRPOConfig(
        output_dir=str(folder / "out"),
        model_init_kwargs={"dtype": spec.model.dtype.value},
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=micro_batch_size,
        gradient_accumulation_steps=samples // micro_batch_size,
        num_generations=spec.rollout.samples_per_prompt,
        max_completion_length=spec.rollout.sampling.max_new_tokens,
        temperature=spec.rollout.sampling.temperature,
        top_p=spec.rollout.sampling.top_p,
        top_k=spec.rollout.sampling.top_k,
        beta=algorithm.kl.coefficient,
        epsilon=bounds_of(algorithm.clip).low,
        epsilon_high=bounds_of(algorithm.clip).high,
        learning_rate=optimizer.learning_rate,
        adam_beta1=optimizer.beta1,
        adam_beta2=optimizer.beta2,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        warmup_steps=optimizer.warmup_steps,
        lr_scheduler_type="constant_with_warmup",
        gradient_checkpointing=False,
        max_steps=steps,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=0,
        seed=spec.seed,
    )


def _reward(spec: RLJobSpec) -> Any:
    """The manifest's own reward, as TRL calls one."""
    from rljob_workers.rewards.base import Answer
    from rljob_workers.rewards.builtin import CharacterMatch, ExactMatch

    reward = ExactMatch() if spec.rollout.reward.character_match is None else CharacterMatch()

    def score(completions: list[str], label: list[str], **_: object) -> list[float]:
        answers = [Answer("", text, wanted, 0, 0) for text, wanted in zip(completions, label, strict=True)]
        return reward.score_groups([answers])[0]

    return score


def _stamps(spec: RLJobSpec) -> Any:
    from transformers import TrainerCallback

    samples = spec.rollout.batch_size * spec.rollout.samples_per_prompt

    class Stamps(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
            if logs is None or "reward" not in logs:
                return
            line = {
                "step": state.global_step,
                "time": time.monotonic(),
                "samples": samples,
                "tokens": float(logs["completions/mean_length"]) * samples,
                "reward": float(logs["reward"]),
            }
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()

    return Stamps()


if __name__ == "__main__":
    main()
