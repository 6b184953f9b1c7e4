"""Log-probs and entropy of response tokens by a transformers model: its method `score`.

A method of the model, since a sharded one gathers its weights around its own methods only: the head's, too, which the
log-probs are computed with. It is bound before the model is sharded and registered with FSDP after that (`building`).
"""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from rljob_workers.algorithms.chunked_log_probs import chunked_log_probs
from rljob_workers.algorithms.wide_products import wide_linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rljob_workers.trainers.fsdp.inputs import ModelInputs

SCORE = "score"
"""Name of the method."""


def score(model: PreTrainedModel, inputs: ModelInputs, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log pi of each target, and the entropy of the distribution that it is a draw of; both [responses], float32.

    With a graph where gradients are on. A collective where the model is sharded, with no response tokens, too.
    """
    scored: tuple[torch.Tensor, torch.Tensor] = getattr(model, SCORE)(inputs, temperature)
    return scored


def bind_score(model: PreTrainedModel, head_dtype: torch.dtype | None, *, is_known_family: bool) -> None:
    """Gives the model its method `score`, whose logits are in `head_dtype`; None: in the type that it computes in.

    What a model of a family that is not known does with its hidden states only its own forward pass knows: it makes
    the logits of all tokens, which takes the memory for them.
    """
    if is_known_family:
        setattr(model, SCORE, MethodType(partial(_score_hidden_states, head_dtype=head_dtype), model))
        return
    if head_dtype is not None:
        _widen_head(model, head_dtype)
    setattr(model, SCORE, MethodType(_score_logits, model))


def _widen_head(model: PreTrainedModel, head_dtype: torch.dtype) -> None:
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if not isinstance(head, torch.nn.Linear):
        raise ValueError(
            f"model.headDtype: {str(head_dtype).removeprefix('torch.')} needs a head that is one matrix, which a"
            f" {model.config.model_type} model does not have. Set model.headDtype to what model.dtype is."
        )
    setattr(head, "forward", partial(_wide_head, head, head_dtype))  # noqa: B010 -- a method, in the eyes of mypy


def _wide_head(head: torch.nn.Linear, dtype: torch.dtype, hidden: torch.Tensor) -> torch.Tensor:
    logits = wide_linear(hidden, head.weight, dtype)
    return logits if head.bias is None else logits + head.bias.to(dtype)


def _score_hidden_states(
    model: PreTrainedModel, inputs: ModelInputs, temperature: float, *, head_dtype: torch.dtype | None
) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = model.base_model(**_arguments(inputs)).last_hidden_state.flatten(0, 1)
    return chunked_log_probs(
        hidden[inputs.predicting],
        _head(model),
        inputs.targets,
        temperature=temperature,
        softcap=getattr(model.config, "final_logit_softcapping", None),
        head_dtype=head_dtype,
    )


def _head(model: PreTrainedModel) -> torch.Tensor:
    """[vocabulary, width]."""
    head: torch.nn.Linear = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head.weight


def _score_logits(model: PreTrainedModel, inputs: ModelInputs, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    # By the method and not by calling the model: FSDP is in `score` already.
    logits = model.forward(**_arguments(inputs)).logits.flatten(0, 1)[inputs.predicting]
    wide = torch.promote_types(logits.dtype, torch.float32)
    log_probs = torch.log_softmax(logits / temperature, -1, dtype=wide)
    return log_probs.gather(1, inputs.targets[:, None]).squeeze(1), -(log_probs.exp() * log_probs).sum(-1)


def _arguments(inputs: ModelInputs) -> dict[str, Any]:
    """Never an attention mask and never a cache: with either, transformers lets joined rows see each other."""
    blocks = {} if inputs.row_blocks is None else {"row_blocks": inputs.row_blocks}
    return {"input_ids": inputs.token_ids, "position_ids": inputs.positions, "use_cache": False, **blocks}
