"""The config of a model's twin: the same family with the same switches, two layers deep and narrow. Pure.

    for small in twin_configs(config): ...      # narrow and shallow first, then shallow alone

What decides how a family masks, places and joins stays: kinds of layers, a window (shorter than the twin's rows),
shares of heads, groups of experts, scales. What only makes a model large goes. Which field is a width is known by
transformers' common names and by size: what is a multiple of the hidden size stays that multiple.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

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
    """What config.json says of twins, the smallest first; where its sizes do not fit each other the next may."""
    shallow = _shallow(config)
    yield _narrow(shallow, config.attribute_map)
    yield shallow


def _shallow(config: PretrainedConfig) -> dict[str, Any]:
    """Few layers, of each kind one at least, and few words."""
    described, names = config.to_dict(), config.attribute_map
    depth = names.get("num_hidden_layers", "num_hidden_layers")
    old = described.get(depth)
    if isinstance(old, int):
        chosen = _chosen_layers(described, old)
        lists = {name: value for name, value in described.items() if isinstance(value, list) and len(value) == old}
        described |= {name: [value[layer] for layer in chosen] for name, value in lists.items()}
        described[depth] = len(chosen)
    words = names.get("vocab_size", "vocab_size")
    described[words] = min(int(described.get(words) or VOCABULARY), VOCABULARY)
    for name, value in described.items():
        if _FIRST_LAYERS.search(name) and isinstance(value, int):
            described[name] = min(value, 1)
        elif _IS_REACH.search(name) and type(value) is int and value > _REACH and not _EXPERT_CHOICE.search(name):
            described[name] = _CHOSEN_BLOCKS if "topk" in name else _REACH
        elif name.endswith("token_id"):
            described[name] = _token_within(value, described[words])
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
