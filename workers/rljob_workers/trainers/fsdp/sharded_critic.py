"""The critic of the backend `Fsdp`: transformers' backbone of any family, with a value head, sharded over ranks.

Built by the factory. The head stands where `...ForSequenceClassification` has it, `score.weight`, and is put on the
backbone here: transformers has no such class of many families.
"""

from __future__ import annotations

import re
from copy import deepcopy
from types import MethodType
from typing import TYPE_CHECKING, ClassVar

import torch
from torch.nn import functional

from rljob_workers.algorithms.objective import Output, Outputs
from rljob_workers.models.value_head import VALUE_HEAD
from rljob_workers.trainers.fsdp.inputs import rows_between
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, causal_model, predicting_states, shard
from rljob_workers.trainers.fsdp.sharded_trainer import FsdpModel
from rljob_workers.trainers.fsdp.stored_tensors import PASSED_OVER, bind_layout, layout_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PretrainedConfig, PreTrainedModel

    from rljob_workers.tensors.jagged import Jagged
    from rljob_workers.trainers.fsdp.inputs import ModelInputs
    from rljob_workers.trainers.micro_batches import RowRange

_MODULE = VALUE_HEAD.removesuffix(".weight")

VALUES = "values_of_responses"
"""Name of the method."""


def backbone_width(config: PretrainedConfig) -> int:
    """Elements of what the head sees of a token."""
    projected: int | None = getattr(config, "word_embed_proj_dim", None)  # OPT projects its last hidden states
    width: int = projected or config.get_text_config().hidden_size
    return width


def build_sharded_critic(config: PretrainedConfig, options: ModelOptions, mesh: DeviceMesh) -> PreTrainedModel:
    """Each rank's shard of a critic; its weights are not set, and a language head in what it loads is passed over."""
    config = deepcopy(config)
    config.tie_word_embeddings = False  # there is nothing to tie
    model = causal_model(config, options)
    if model.base_model is model:
        raise ValueError(
            f"critic: a {config.model_type} model of transformers has no backbone apart from its head. Give a model of"
            " another family."
        )
    _drop_heads(model)
    head = torch.nn.Linear(backbone_width(config), 1, bias=False, device="meta", dtype=options.storage)
    model.add_module(_MODULE, head)
    bind_layout(model)
    setattr(model, VALUES, MethodType(_values, model))
    return shard(model, options, mesh, VALUES)


def _drop_heads(model: PreTrainedModel) -> None:
    """All that is not of the backbone; files that have tensors of it load all the same."""
    bind_layout(model)
    layout = layout_of(model)
    heads = [name for name, child in model.named_children() if child is not model.base_model]
    tensors = [name for name in model.state_dict() if name.partition(".")[0] in heads]
    stored = [stored for name in tensors for stored in layout.shapes(name)]
    ignored = getattr(model, PASSED_OVER, None) or []
    setattr(model, PASSED_OVER, [*ignored, *(f"^{re.escape(name)}$" for name in stored)])
    for name in heads:
        delattr(model, name)


def _values(model: PreTrainedModel, inputs: ModelInputs) -> torch.Tensor:
    states = predicting_states(model, inputs)
    wide = torch.promote_types(states.dtype, torch.float32)
    head: torch.Tensor = getattr(model, _MODULE).weight
    return functional.linear(states.to(wide), head.to(wide)).squeeze(1)


class FsdpCritic(FsdpModel):
    """A sharded critic and its optimizer, on one of its ranks; `model` is of `build_sharded_critic`."""

    outputs: ClassVar[frozenset[Output]] = frozenset({Output.VALUES})

    def forward(self, tokens: Jagged, response_lengths: torch.Tensor, part: RowRange, temperature: float) -> Outputs:  # noqa: ARG002 -- there are no logits
        """The value of the state before every response token, [tokens] float32 at least; a collective."""
        chosen = rows_between(tokens, part.start, part.stop)
        inputs = self._make_inputs(chosen, response_lengths[part.start : part.stop], self._model.device)
        return Outputs(values=getattr(self._model, VALUES)(inputs))
