"""Whether this trainer computes a family right that no test has held: shown on a small twin of the model itself.

    proof = prove(described)         # what config.json says; seconds, on the CPU
    proof.packed, proof.padded       # None, or why the model is not computed right in that layout
    proof.head                       # the same of logits in a wider type than the model's

The twin has random weights, is saved as transformers saves it, and is loaded, computed and derived as the model would
be: rows of uneven length, joined or padded, with activations computed again. What comes out must be what transformers'
own forward pass gives in evaluation mode, row by row: log-probs, gradients, and the same numbers in a second pass. So
it must be with a head in a wider type.
Called through `proof`, which keeps what was found.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rljob_api.family_proofs import FamilyProof, NotProven
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.fsdp.building import ModelOptions, build_whole, model_config
from rljob_workers.trainers.fsdp.inputs import joined_inputs, padded_inputs
from rljob_workers.trainers.fsdp.loading import load_folder
from rljob_workers.trainers.fsdp.scoring import score
from rljob_workers.trainers.fsdp.twin_config import VOCABULARY, twin_configs

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_LENGTHS, _RESPONSES = (2, 19, 8, 13, 3, 23, 7), (1, 12, 5, 9, 2, 15, 4)
"""Rows longer than a twin's window, and others between them; the first has a prompt and a response of one token."""
_TEMPERATURE = 1.3
_SEED = 5
FORWARD, BACKWARD = 1e-3, 1e-2
"""How far log-probs and gradients may be off, of the largest. Families that are right: up to 4e-6 and 3e-5 in float32;
rows that see each other, dropout, or a mask that is left out: above 0.05."""
_MOST_PARAMETERS = 300_000_000
"""A twin with more takes too long."""
_LACK = re.compile(r"\(os error \d+\)|can't allocate memory|cannot allocate memory|out of memory", re.IGNORECASE)
"""How safetensors and torch say that the disk or the memory is full, in exceptions of their own."""


def prove(described: Mapping[str, Any]) -> FamilyProof:
    """ValueError for a config that transformers does not know, NotProven where it is the machine that lacks something.

    All else that goes wrong is what the proof says.
    """
    try:
        return _proof(model_config(described))
    except Exception as error:
        if not _passes(error):
            raise
        raise NotProven.now(described, _first_line(error)) from error


def _proof(config: PretrainedConfig) -> FamilyProof:
    problem = ""
    for small in twin_configs(config):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            torch.manual_seed(_SEED)
            try:
                twin = _made(small)
                tokens = _tokens_of(twin)
                expected = _by_itself(twin, tokens)
                twin.save_pretrained(folder)
            except Exception as error:
                if _passes(error):
                    raise
                problem = problem or f"a small twin of it cannot be made ({_first_line(error)})"
                continue
            gradients = {name: tensor.grad for name, tensor in twin.named_parameters()}
            right = _Right(Path(folder), tokens, expected, gradients)
            packed, padded = (_difference(right, _options(packing=packing)) for packing in (True, False))
            head = None if packed and padded else _problem_of_head(twin, right, is_packed=packed is None)
            return FamilyProof(packed, padded, head)
    return FamilyProof(problem, problem, None)


@dataclass(frozen=True, slots=True)
class _Right:
    """A twin in its folder, and what transformers computes with it."""

    folder: Path
    tokens: Jagged
    log_probs: torch.Tensor
    gradients: Mapping[str, torch.Tensor | None]


def _options(*, packing: bool, head_dtype: torch.dtype | None = None) -> ModelOptions:
    return ModelOptions(
        torch.float32, torch.float32, packing=packing, head_dtype=head_dtype, activation_checkpointing=True
    )


def _made(described: Mapping[str, Any]) -> PreTrainedModel:
    """Transformers' own model, with weights by which attention and every vector count."""
    from transformers import AutoModelForCausalLM

    config = model_config(described)
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())  # type: ignore[no-untyped-call]
    if size > _MOST_PARAMETERS:
        raise ValueError(f"two layers of it have {size} parameters")
    # Not by kernels: some leave out what a family does with its scores.
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32, attn_implementation="eager"
    )
    if any(".experts." in name for name, _ in model.named_parameters()):
        model.set_experts_implementation("eager")
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() > 1:
                parameter.copy_(noise.mul_(1.5 * parameter.shape[-1] ** -0.5))
            else:  # what a vector means is the family's own: a scale, a rate, a bias
                parameter.add_(noise.mul_(0.1))
    model.eval()  # type: ignore[no-untyped-call]
    return model


def _by_itself(model: PreTrainedModel, tokens: Jagged) -> torch.Tensor:
    """Log-probs, each row in a pass of its own, all its logits at once; leaves the gradients."""
    parts = []
    for row, response in zip(tokens.rows(), _RESPONSES, strict=True):
        logits = model(input_ids=row[None].long(), use_cache=False).logits[0, :-1].float()
        log_probs = torch.log_softmax(logits / _TEMPERATURE, -1)
        parts.append(log_probs.gather(1, row[1:, None].long())[-response:, 0])
    log_probs = torch.cat(parts)
    torch.autograd.backward(log_probs @ _weights())
    if not bool(log_probs.isfinite().all()):
        raise ValueError("its log-probs are not finite")
    return log_probs.detach()


def _difference(right: _Right, options: ModelOptions) -> str | None:
    """Why rows in this layout are not computed as by transformers; None where they are."""
    device, responses = torch.device("cpu"), torch.tensor(_RESPONSES)
    try:
        own = _loaded(right, options)
        inputs = (joined_inputs if options.packing else padded_inputs)(right.tokens, responses, device)
        found, _ = score(own, inputs, _TEMPERATURE)
        found = found.float()
        torch.autograd.backward(found @ _weights())
        with torch.no_grad():
            again, _ = score(own, inputs, _TEMPERATURE)
    except Exception as error:
        return _raised(error)
    off = float((found.detach() - right.log_probs).abs().max())
    if not off <= FORWARD * max(1.0, float(right.log_probs.abs().max())):
        return f"log-probs of its twin are off by {off:.2g} from transformers' own"
    apart = float((found.detach() - again).abs().max())
    if apart > FORWARD:
        return f"two passes over one row of its twin differ by {apart:.2g}"
    return _of_gradients(own, right.gradients)


def _problem_of_head(twin: PreTrainedModel, right: _Right, *, is_packed: bool) -> str | None:
    """Why logits in a wider type than the model's are not computed right; None where they are.

    What a family does around its head shows in float64 beside float32. Whether it rounds shows in a model in bfloat16.
    """
    if not isinstance(twin.get_output_embeddings(), torch.nn.Linear):  # type: ignore[no-untyped-call]
        return "its head is not one matrix"
    wrong = _difference(right, _options(packing=is_packed, head_dtype=torch.float64))
    if wrong is not None:
        return wrong
    narrow = ModelOptions(torch.bfloat16, torch.bfloat16, packing=False, head_dtype=torch.float32)
    try:
        with torch.no_grad():
            logits = _loaded(right, narrow)(input_ids=right.tokens.rows()[1][None].long(), use_cache=False).logits
    except Exception as error:
        return _raised(error)
    return (
        "its forward pass rounds them to bfloat16" if torch.equal(logits.float(), logits.bfloat16().float()) else None
    )


def _raised(error: Exception) -> str:
    """What a proof says of it, unless it passes."""
    if _passes(error):
        raise error
    return f"computing it raises {type(error).__name__} ({_first_line(error)})"


def _loaded(right: _Right, options: ModelOptions) -> PreTrainedModel:
    own = build_whole(_saved_config(right.folder), options)
    load_folder(own, right.folder)
    return own


def _of_gradients(own: PreTrainedModel, gradients: Mapping[str, torch.Tensor | None]) -> str | None:
    largest = max(float(one.abs().max()) for one in gradients.values() if one is not None)
    for name, parameter in own.named_parameters():
        found, wanted = (
            torch.zeros_like(parameter) if one is None else one for one in (parameter.grad, gradients[name])
        )
        off = float((found - wanted).abs().max())
        if not off <= BACKWARD * largest:
            return f"the gradient of its twin's {name} is off by {off / largest:.2g} of the largest"
    return None


def _saved_config(folder: Path) -> Any:  # noqa: ANN401 -- transformers' config, of whatever class
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder)


def _tokens_of(model: PreTrainedModel) -> Jagged:
    words = min([VOCABULARY, *(len(table) for table in model.get_input_embeddings().parameters())])
    chance = torch.Generator().manual_seed(_SEED)
    return Jagged.from_rows(
        [torch.randint(0, words, (length,), generator=chance, dtype=torch.int32) for length in _LENGTHS]
    )


def _weights() -> torch.Tensor:
    return torch.linspace(-1, 1, sum(_RESPONSES))


def _passes(error: BaseException | None) -> bool:
    """Whether the machine lacks memory, space or a package, of which the model is not to blame. Or its cause does."""
    if error is None:
        return False
    is_of_the_machine = isinstance(error, OSError | MemoryError | ImportError) or _LACK.search(str(error)) is not None
    return is_of_the_machine or _passes(error.__cause__)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
