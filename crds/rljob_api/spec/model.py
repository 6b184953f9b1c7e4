"""The model of a job (`spec.model`): a checkpoint folder or random weights, its types and its tokenizer.

Fields, their rules, and the size of a tokenizer that is made from a config. Anyone may import it. Reads no file.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, field_validator

from rljob_api.rule import Rule, RuledModel

PRINTABLE_ASCII = "".join(chr(code) for code in range(0x20, 0x7F)) + "\n"
"""The default alphabet: printable ASCII and the newline, without which no multi-line prompt could be written."""


SPECIAL_TOKENS = ("<|eos|>", "<|pad|>")
"""End of sequence and padding, in the order of their ids, which follow those of the characters or bytes."""


NUM_BYTES = 256


def alphabet_of(config: TokenizerConfig) -> str:
    """The characters of a Character tokenizer in the order of their ids (the spec's rules: none of them twice)."""
    return PRINTABLE_ASCII if config.alphabet is None else config.alphabet


def tokenizer_size(config: TokenizerConfig) -> int:
    """Number of ids, special tokens included."""
    characters = NUM_BYTES if config.kind == "Byte" else len(alphabet_of(config))
    return characters + len(SPECIAL_TOKENS)


_SPECIAL = len(SPECIAL_TOKENS)


def _vocabulary_covers_tokenizer(model: ModelConfig) -> bool:
    return model.vocab_size is None or model.vocab_size >= tokenizer_size(model.tokenizer)


TOKENIZER: tuple[Rule, ...] = (
    Rule(
        field="alphabet",
        holds=lambda tokenizer: tokenizer.kind == "Character" or tokenizer.alphabet is None,
        sentence="belongs to kind Character, but kind is {kind}. Remove alphabet or set kind to Character.",
        cel="self.kind == 'Character' || !has(self.alphabet)",
    ),
)


MODEL_CONFIG: tuple[Rule, ...] = (
    Rule(
        field="numKeyValueHeads",
        holds=lambda model: model.num_attention_heads % model.num_key_value_heads == 0,
        sentence="{numKeyValueHeads} does not divide numAttentionHeads {numAttentionHeads}. Give a divisor of it.",
        cel="self.numAttentionHeads % self.numKeyValueHeads == 0",
    ),
    Rule(
        field="vocabSize",
        holds=_vocabulary_covers_tokenizer,
        sentence="{vocabSize} is smaller than the tokenizer, which has one token for each character of its alphabet "
        f"(each byte with kind Byte) and {_SPECIAL} special ones. Leave vocabSize out or give at least that.",
        cel=f"!has(self.vocabSize) || self.vocabSize >= {_SPECIAL} + (self.tokenizer.kind == 'Byte' ? {NUM_BYTES} : "
        f"(has(self.tokenizer.alphabet) ? size(self.tokenizer.alphabet) : {len(PRINTABLE_ASCII)}))",
    ),
)


MODEL: tuple[Rule, ...] = (
    Rule(
        field="path",
        holds=lambda model: (model.path is None) != (model.config is None),
        sentence="exactly one of path and config must be given. Give path for a checkpoint folder, or config for "
        "random weights, and null for the other.",
        cel="has(self.path) != has(self.config)",
    ),
    Rule(
        field="headDtype",
        holds=lambda model: model.head_dtype != "bfloat16" or model.dtype == "bfloat16",
        sentence="bfloat16 is narrower than dtype float32, so that logits would be rounded for nothing. Leave "
        "headDtype out.",
        cel="!has(self.headDtype) || self.headDtype != 'bfloat16' || self.dtype == 'bfloat16'",
    ),
)


MAX_SEED = (1 << 31) - 1


Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]


class Dtype(StrEnum):
    """The type of the weights in training and generation."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"

    @property
    def num_bytes(self) -> int:
        """Bytes of one number."""
        return 4 if self is Dtype.FLOAT32 else 2


class Architecture(StrEnum):
    """Hugging Face causal language models that can be built from a config."""

    QWEN3 = "Qwen3"
    LLAMA = "Llama"


class TokenizerKind(StrEnum):
    """Tokenizers that a model made from a config may have."""

    CHARACTER = "Character"
    BYTE = "Byte"


class TokenizerConfig(RuledModel):
    """The tokenizer of a model made from a config."""

    rules = TOKENIZER

    kind: TokenizerKind = TokenizerKind.CHARACTER
    """Character: one token per character of `alphabet`. Byte: one token per UTF-8 byte. Both add tokens for the end of
    a sequence and for padding."""
    alphabet: str | None = Field(default=None, min_length=1, max_length=1024)
    """The characters of a Character tokenizer, each once; null means printable ASCII and the newline."""

    @field_validator("alphabet")
    @classmethod
    def _each_character_once(cls, alphabet: str | None) -> str | None:
        twice = next((char for index, char in enumerate(alphabet or "") if char in (alphabet or "")[:index]), None)
        if twice is not None:  # stays in Python: CEL on Kubernetes cannot count characters within its budget
            raise ValueError(f"the character {twice!r} is in it twice. Write each once.")
        return alphabet


class ModelConfig(RuledModel):
    """A model with random weights; version 0 is materialised once from `seed`."""

    rules = MODEL_CONFIG

    architecture: Architecture = Architecture.QWEN3
    """Family of the model."""
    hidden_size: int = Field(default=64, ge=8, le=65536)
    """Width of the residual stream."""
    intermediate_size: int = Field(default=128, ge=8, le=262144)
    """Width of the feed-forward layers."""
    num_layers: int = Field(default=2, ge=1, le=256)
    """Transformer blocks."""
    num_attention_heads: int = Field(default=4, ge=1, le=256)
    """Query heads of each block."""
    num_key_value_heads: int = Field(default=2, ge=1, le=256)
    """Key and value heads of each block; divides numAttentionHeads."""
    head_dim: int = Field(default=16, ge=4, le=512, multiple_of=2)
    """Width of one head; even, since rotary embeddings turn pairs."""
    max_position_embeddings: int = Field(default=1024, ge=8, le=1048576)
    """Longest sequence, prompt and response together, in tokens."""
    tie_word_embeddings: bool = True
    """Whether input and output embeddings share their weights."""
    initializer_range: float = Field(default=0.02, gt=0, le=1)
    """Standard deviation of the initial weights."""
    vocab_size: int | None = Field(default=None, ge=2, le=1048576)
    """Rows of the embedding; null means as many as the tokenizer has tokens. Must not be smaller than that."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The tokenizer that is built along with the model."""
    seed: Seed = 0
    """Seed of the random weights."""


class ModelSpec(RuledModel):
    """Exactly one of `path` and `config`."""

    rules = MODEL

    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A Hugging Face checkpoint folder (config.json, safetensors, tokenizer), or its name on the hub, such as
    `hf:Qwen/Qwen3-0.6B` or `hf:Qwen/Qwen3-0.6B@main`, which must be in the cache of huggingface_hub."""
    config: ModelConfig | None = None
    """A model with random weights."""
    tokenizer_path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A folder with a tokenizer; null means the one in `path` or that of `config`."""
    dtype: Dtype = Dtype.FLOAT32
    """Type of the weights in training and generation."""
    head_dtype: Dtype | None = None
    """Type in which logits are summed up and given, in training, in actorFwd and reference, and in the engine (SGLang
    gets --enable-fp32-lm-head). In bfloat16 log-probs of the same hidden states are off by hundredths, in float32 they
    are not. Null: float32 where the actor or the rollout has gpus when the job begins, else what dtype is."""
