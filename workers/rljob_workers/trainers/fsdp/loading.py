"""Weights into a model that `building` made, and its parameters as parts of stored tensors.

Each rank copies its own rows out of mapped files, so that it reads little more than its shard. Nothing is changed
unless everything fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from rljob_workers.models.blob import read_weights
from rljob_workers.trainers.fsdp.stored_names import StoredPart, layout_of

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel


def load_folder(model: PreTrainedModel, path: Path) -> None:
    """From a safetensors file, a Hugging Face folder, a folder of parts, or a checkpoint folder. See `load_weights`."""
    load_weights(model, read_weights(path), source=str(path))


def load_weights(model: PreTrainedModel, stored: Mapping[str, torch.Tensor], *, source: str) -> None:
    """Copies stored tensors into the model, in its type; ValueError, and nothing changed, where they do not fit.

    A head that is tied to the embedding may be there or not; it is not read, and nor is what transformers ignores.
    """
    check_fit(model, {name: tuple(tensor.shape) for name, tensor in stored.items()}, source=source)
    with torch.no_grad():
        for part in own_parts(model):
            part.values.copy_(stored[part.name][part.place])


def weight_shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Stored name -> shape of every weight, in the model's order, the same on every rank."""
    layout = layout_of(model)
    return {stored: shape for name in stored_tensors(model) for stored, shape in layout.shapes(name).items()}


def own_parts(model: PreTrainedModel) -> Iterator[StoredPart]:
    """What this rank holds of the stored tensors; the parts' values are views of its shard."""
    layout = layout_of(model)
    for name, parameter in stored_tensors(model).items():
        yield from layout.parts(name, *local_rows(parameter))


def local_rows(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """This rank's rows of a tensor, as a view, and the first one's number. All of them where it is not sharded.

    FSDP cuts along axis 0 into as many pieces as there are ranks, all of the first one's length but the last ones.
    """
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return tensor.detach(), 0
    local = tensor.to_local().detach()
    piece = -(-tensor.shape[0] // tensor.device_mesh.size())
    return local, min(piece * tensor.device_mesh.get_local_rank(), tensor.shape[0])


def check_fit(model: PreTrainedModel, shapes: Mapping[str, tuple[int, ...]], *, source: str) -> None:
    """ValueError that names the first tensor of the model, or of `shapes`, that differs, with both shapes."""
    wanted = weight_shapes(model)
    for name in (*wanted, *shapes):
        has, needs = shapes.get(name), wanted.get(name)
        if has != needs and not (needs is None and _is_not_read(model, name)):
            raise ValueError(
                f"model: {source} does not fit: tensor {name} is {_in_words(has)} there, but {_in_words(needs)} in the"
                " model. Use weights of the same architecture and sizes."
            )


def stored_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Parameters, each once, and the buffers that folders hold."""
    parameters = dict(model.named_parameters())
    tied = _tied_names(model)
    kept = {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if name not in parameters}
    return {**parameters, **{name: tensor for name, tensor in kept.items() if name not in tied}}


def _is_not_read(model: PreTrainedModel, stored: str) -> bool:
    """A head that is tied, or what transformers passes over, too: buffers that older files of a family hold."""
    layout = layout_of(model)
    if any(stored in layout.shapes(name) for name in _tied_names(model)):
        return True
    passed_over = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    return any(re.search(pattern, stored) for pattern in passed_over)


def _tied_names(model: PreTrainedModel) -> set[str]:
    """Second names of parameters."""
    return {name for name, _ in model.named_parameters(remove_duplicate=False)} - dict(model.named_parameters()).keys()


def _in_words(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else f"of shape {list(shape)}"
