"""Features of other trainers that RLJob lacks: a table of docs/coming-from.md, and of hints. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PLACE = "docs/coming-from.md#what-there-is-not"


@dataclass(frozen=True, slots=True)
class Absent:
    """A feature that others have and we have not."""

    what: str
    here: str
    """Its replacement, as Markdown."""
    pattern: str
    """Matches names and values that ask for it, in lower case without `_` and `-`."""

    @property
    def markdown(self) -> str:
        """Its row of the page."""
        return f"| {self.what} | {self.here} |\n"

    @property
    def sentence(self) -> str:
        """For someone who has asked for it."""
        return f"RLJob does not have {self.what}: {self.here.replace('`', '')} ({_PLACE})."


ABSENT = (
    Absent(
        "LoRA and other adapters",
        "all weights are trained. Merge an adapter into its model before (`merge_and_unload` of peft)",
        r"q?lora\w*|use(q?lora|peft)|peft\w*|adapters?\w*|targetmodules|modulestosave",
    ),
    Absent(
        "weights of 8 or 4 bits, FP8",
        "`model.dtype` is float32 or bfloat16",
        r"(de)?quanti[sz]\w*|loadin(4|8)bit|bitsandbytes|bnb\w*|awq|gptq|fp8\w*|float8\w*|int[48]|(nf|fp)4",
    ),
    Absent(
        "images, audio, video",
        "prompts and answers are texts",
        r"(use)?(images|vision\w*|videos?|audios?|multimodal\w*)|(image|video|audio)(key|column|url|dir|folder)s?|\w*pixel(s|values)",
    ),
    Absent(
        "vLLM, TensorRT-LLM and other servers",
        "`roles.rollout.engine.kind` is SGLang or Torch",
        r"(use)?(vllm|tensorrt|trtllm|lmdeploy|tgi|llamacpp|ollama)\w*",
    ),
    Absent(
        "Slurm, Ray",
        "`rljob run` starts a job on one machine, the operator on Kubernetes",
        r"slurm\w*|sbatch\w*|ray|ray(init|cluster|address|kwargs)\w*",
    ),
    Absent(
        "DeepSpeed, ZeRO",
        "`roles.actor.backend` is Fsdp, Megatron or Flat",
        r"deepspeed\w*|zero(stage)?[123]?|zero(optimization|offload)",
    ),
    Absent(
        "supervised fine-tuning, DPO, training of reward models",
        "only what is learnt from answers that the policy itself has drawn",
        r"sft\w*|dpo\w*|kto|orpo|simpo|ipo",
    ),
    Absent(
        "an option that resumes a run",
        "the same `rljob run` again goes on with it",
        r"resume\w*|loadenable|loadcheckpoint\w*",
    ),
    Absent(
        "a choice of the steps that are logged",
        "each is a line of `metrics.jsonl` and a point of the trackers",
        r"logging(steps|strategy|firststep|dir)|log(every|freq|interval|steps)\w*",
    ),
    Absent(
        "settings of trackers in the manifest",
        "project, key and the like are variables of the tracker's own, such as `WANDB_PROJECT`",
        r"(wandb|tb|tensorboard|trackio|swanlab)\w+|project(name)?",
    ),
    Absent(
        "uploads to the hub",
        "`rljob checkpoint export` writes the folder that `hf upload` takes",
        r"pushtohub|hub(modelid|token|strategy|privaterepo|alwayspush)",
    ),
)


def absent_sentence(name: str) -> str | None:
    """Where the name of a field, or a value, asks for something that there is not."""
    plain = re.sub(r"[_\W]", "", name).lower()
    found = next((each for each in ABSENT if re.fullmatch(each.pattern, plain)), None)
    return None if found is None else found.sentence
