"""Whether this trainer computes a family right that no test covers: shown on a small twin of the model itself.

Imported by `proof` when it is needed. A twin has the same family and switches, two layers deep and narrow.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rljob_api.model_files.families import FamilyProof, NotProven
from rljob_workers.models.building import model_config
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.fsdp.inputs import joined_inputs, padded_inputs
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, build_whole, score
from rljob_workers.trainers.fsdp.stored_tensors import load_folder

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


VOCABULARY = 96


_NUM_LAYERS = 2


_MOST_LAYERS = 8
"""For a family whose kinds of layers follow each other in a longer pattern than two."""


_REACH = 5
"""How far a token sees, or the size of what it sees as one, where the config has a limit: below the twin's rows."""


_CHOSEN_BLOCKS = 2


_INNER = 64


_KEY_HEADS, _HEADS_OF_A_KEY = 2, 2


_EXPERTS, _CHOSEN_EXPERTS, _EXPERT_GROUPS = 8, 4, 4


_LARGEST_MULTIPLE = 16


_NOT_A_WIDTH = re.compile("position|vocab|token|window|length|seq|layer|chunk|_id$|max_|num_|n_head|head_dim|^n_ctx$")


_IS_REACH = re.compile("window|local_attention|chunk_size|block_size|index_topk|attention_span|segment_len")


_INNER_WIDTH = re.compile("intermediate|ffn_dim|ffn_hidden|inner")


_EXPERT_COUNT = re.compile("^(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts)$")


_EXPERT_CHOICE = re.compile("^(num_experts_per_tok|moe_topk|moe_k|num_experts_per_token|top_k_experts)$")


_STATE_HEADS = re.compile("^mamba_(n|num)_heads$")


_OTHER_HEADS = re.compile("head(?!.*dim)")


_FIRST_LAYERS = re.compile("first_k_dense|max_window_layers|num_dense_layers|moe_layer_start")


_PATTERN = re.compile("period|interval|pattern|every_n|_step$|frequency|freq$")


def twin_configs(config: PretrainedConfig) -> Iterator[dict[str, Any]]:
    """config.json of twins, the smallest first; where its sizes do not fit each other the next may."""
    shallow = _shallow(config)
    yield _narrow(shallow, config.attribute_map)
    yield shallow


def _shallow(config: PretrainedConfig) -> dict[str, Any]:
    """Few layers, of each kind one at least, and a small vocabulary."""
    described, names = config.to_dict(), config.attribute_map
    depth = names.get("num_hidden_layers", "num_hidden_layers")
    old = described.get(depth)
    if isinstance(old, int):
        chosen = _chosen_layers(described, old)
        lists = {name: value for name, value in described.items() if isinstance(value, list) and len(value) == old}
        described |= {name: [value[layer] for layer in chosen] for name, value in lists.items()}
        described[depth] = len(chosen)
    size = names.get("vocab_size", "vocab_size")
    described[size] = min(int(described.get(size) or VOCABULARY), VOCABULARY)
    for name, value in described.items():
        if _FIRST_LAYERS.search(name) and isinstance(value, int):
            described[name] = min(value, 1)
        elif _IS_REACH.search(name) and type(value) is int and value > _REACH and not _EXPERT_CHOICE.search(name):
            described[name] = _CHOSEN_BLOCKS if "topk" in name else _REACH
        elif name.endswith("token_id"):
            described[name] = _token_within(value, described[size])
    return described


def _chosen_layers(described: Mapping[str, Any], old: int) -> list[int]:
    """The first of each kind, in order; as many as the longest pattern of whole numbers needs."""
    lists = [value for value in described.values() if isinstance(value, list) and len(value) == old]
    first_of = {str([kinds[layer] for kinds in lists]): layer for layer in reversed(range(old))}
    patterns = [v for k, v in described.items() if _PATTERN.search(k) and type(v) is int and 1 < v < _MOST_LAYERS]
    least = min(old, max([_NUM_LAYERS, *patterns]))
    kinds = sorted(first_of.values())
    rest = [layer for layer in range(old) if layer not in kinds]
    return sorted([*kinds[:_MOST_LAYERS], *rest[: max(0, least - len(kinds))]])


def _token_within(token: object, size: int) -> object:
    if isinstance(token, list):
        return [_token_within(one, size) for one in token]
    return min(token, size - 1) if type(token) is int and token >= 0 else None


def _narrow(described: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Few heads, of their own width, and a hidden size that follows from them."""
    small = dict(described)
    width, heads, keys = (names.get(n, n) for n in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    old_width, old_heads, old_keys = (small.get(name) for name in (width, heads, keys))
    if type(old_width) is not int or type(old_heads) is not int or old_width % old_heads:
        return small
    if type(old_keys) is int and 0 < old_keys <= old_heads:
        small[keys] = min(old_keys, _KEY_HEADS)
        small[heads] = small[keys] * min(old_heads // old_keys, _HEADS_OF_A_KEY)
    else:
        small[heads] = min(old_heads, _KEY_HEADS * _HEADS_OF_A_KEY)
    small[width] = old_width // old_heads * small[heads]
    for name, value in small.items():
        if type(value) is not int or name in (width, heads, keys):
            continue
        if _EXPERT_COUNT.search(name):
            small[name] = min(value, _EXPERTS)
        elif _EXPERT_CHOICE.search(name):
            small[name] = min(value, _CHOSEN_EXPERTS)
        elif name in ("n_group", "topk_group"):
            small[name] = min(value, _EXPERT_GROUPS)
        elif _STATE_HEADS.search(name):
            small[name] = max(1, value * small[width] // old_width)
        elif value in (old_heads, old_keys) and _OTHER_HEADS.search(name):
            small[name] = small[heads] if value == old_heads else small[keys]
        elif _INNER_WIDTH.search(name) and "expand" not in small:
            small[name] = min(value, _INNER)
        elif value % old_width == 0 and 0 < value <= _LARGEST_MULTIPLE * old_width and not _NOT_A_WIDTH.search(name):
            small[name] = value // old_width * small[width]
    return small


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
"""What the exceptions of safetensors and torch are called when the disk or the memory is full."""


def prove(described: Mapping[str, Any]) -> FamilyProof:
    """ValueError for a config that transformers does not know, NotProven where it is the machine that lacks something.

    Every other failure is the content of the proof.
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
    """The message of the proof, unless it passes."""
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
    vocabulary = min([VOCABULARY, *(len(table) for table in model.get_input_embeddings().parameters())])
    chance = torch.Generator().manual_seed(_SEED)
    return Jagged.from_rows(
        [torch.randint(0, vocabulary, (length,), generator=chance, dtype=torch.int32) for length in _LENGTHS]
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
