"""Files beside the saved weights of a job's policy, so that its folder answers elsewhere as it did in training.

For the actor. An engine's own folder is `engines.sglang.model_folder`'s, a critic's files `models.value_head`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_api.model_files.ends import GENERATION_FILE
from rljob_workers.models.building import model_files
from rljob_workers.models.ends import policy_generation_config
from rljob_workers.models.saved_templates import SavedTemplate, with_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rljob_api.spec import RLJobSpec


def policy_files(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, template: SavedTemplate) -> dict[str, bytes]:
    """config.json, generation_config.json with all tokens that end an answer of the job, and its tokenizer's files."""
    ends = policy_generation_config(spec.model, tokenizer, spec.rollout.sampling.stop_token_ids)
    return {**with_template(model_files(spec.model, tokenizer), template), GENERATION_FILE: ends}
