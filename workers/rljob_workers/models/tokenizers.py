"""Tokenizers: one that lies in a folder, or a character- or byte-level one made from the spec.

For data sources, engines and trainers. Never asks a hub. Ids of a made tokenizer are a function of its config alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rljob_api.model_files.tokens import symbols_of_bytes
from rljob_api.row_files.conversations import Tool
from rljob_api.spec.model import SPECIAL_TOKENS, ModelSpec, TokenizerConfig, TokenizerKind, alphabet_of
from rljob_workers.models.chat_templates import OWN_TEMPLATE, ChatTemplate
from rljob_workers.models.first_tokens import FirstTokens, first_tokens
from rljob_workers.models.template_forms import Messages

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% if not loop.last %}{{ eos_token }}{% endif %}{% endfor %}"
)
"""Contents, parted by the end-of-sequence token: no character that an alphabet may lack, so that it suits every one."""


_UNBOUNDED = int(1e30)
"""What transformers takes for "no limit": a character-level tokenizer knows none, the model does."""


def build_tokenizer(model: ModelSpec) -> PreTrainedTokenizerBase:
    """The tokenizer of `model`: from `tokenizerPath`, else from `path`, else made from `config`."""
    folder = model.tokenizer_path or model.path
    if folder is not None:
        field = "model.tokenizerPath" if model.tokenizer_path else "model.path"
        return _load(Path(folder), field)
    if model.config is None:
        raise ValueError("model: neither path nor config is given, so that there is no tokenizer. Give one of them.")
    return make_tokenizer(model.config.tokenizer)


def make_tokenizer(config: TokenizerConfig) -> PreTrainedTokenizerFast:
    """A tokenizer with an id per character of the alphabet (or per byte), then those of the special tokens."""
    backend = _byte_level() if config.kind is TokenizerKind.BYTE else _character_level(alphabet_of(config))
    eos, pad = SPECIAL_TOKENS
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call] # transformers has no types here
        tokenizer_object=backend,
        eos_token=eos,
        pad_token=pad,
        clean_up_tokenization_spaces=False,
        model_max_length=_UNBOUNDED,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    prompt: str | Messages,
    tools: Sequence[Tool] | None = None,
    template: ChatTemplate = OWN_TEMPLATE,
) -> list[int]:
    """Token ids of a text, or of chat messages in the template with the generation prompt.

    `tools` describe functions to the model in the place of the template's.
    ValueError names the first character that a Character tokenizer does not know, the prompt and the alphabet.
    """
    text = prompt if isinstance(prompt, str) else template.render(tokenizer, prompt, tools)
    known = _known_characters(tokenizer)
    unknown = (
        next((char for char in _without_special_tokens(tokenizer, text) if char not in known), None) if known else None
    )
    if unknown is not None:
        raise ValueError(
            f"data: the character {unknown!r} of the prompt {_shortened(text)!r} is not in the alphabet"
            f" {''.join(sorted(known))!r} of the tokenizer. Add it to model.config.tokenizer.alphabet,"
            " or set model.config.tokenizer.kind to Byte."
        )
    ids: list[int] = tokenizer.encode(text, add_special_tokens=isinstance(prompt, str))
    return ids


def decode_tokens(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """The text of `token_ids` without special tokens; no white space is added or cleaned away."""
    return str(tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


class TokenizerText:
    """Texts and tokens of one tokenizer. Threads may encode side by side; `tokenizer` is the function's own.

    TokenizerText(build_tokenizer(model), vocab_size)
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
        """`vocab_size`: tokens that the model knows."""
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._known = _known_characters(tokenizer)
        # A copy: truncation and padding, which a function may set, are settings of the tokenizer that encodes.
        self._encoder = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._encoder.no_truncation()
        self._encoder.no_padding()

    def encode(self, text: str, most: int) -> FirstTokens:
        """The text's first tokens, at most `most`, and no others.

        ValueError names the first character before their end that the tokenizer does not know.
        """
        try:
            return first_tokens(self._encoder, text, most)
        except Exception as error:  # tokenizers has no error of its own
            raise self._refused(text) or error from error

    def _refused(self, text: str) -> ValueError | None:
        unknown = next(
            (char for char in _without_special_tokens(self.tokenizer, text) if char not in self._known), None
        )
        if not self._known or unknown is None:
            return None
        return ValueError(
            f"the character {unknown!r} of {_shortened(text)!r} is not in the alphabet {''.join(sorted(self._known))!r}"
            " of the tokenizer."
        )

    def decode(self, token_ids: Sequence[int], *, special_tokens: bool = False) -> str:
        """The text of tokens, with special ones or without."""
        return str(self.tokenizer.backend_tokenizer.decode(list(token_ids), skip_special_tokens=not special_tokens))


def text_decoder(tokenizer: PreTrainedTokenizerBase, *, skip_special_tokens: bool) -> TextDecoder:
    """All texts of a request in one call; transformers' own batch_decode is a loop in Python."""
    return partial(tokenizer.backend_tokenizer.decode_batch, skip_special_tokens=skip_special_tokens)


def _load(folder: Path, field: str) -> PreTrainedTokenizerBase:
    if not folder.is_dir():
        raise ValueError(f"{field}: {folder} is not a folder. Give a folder with tokenizer.json or the like.")
    from transformers import AutoTokenizer  # a launcher imports it before it forks, where the job has such a folder

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(folder), config=_config_beside(folder), local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{field}: {folder} has no tokenizer that transformers can load ({error})."
            " Put one there, or set model.tokenizerPath."
        ) from error
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"{field}: the tokenizer in {folder} has no end-of-sequence token. Set eos_token in its config."
        )
    return tokenizer


def _config_beside(folder: Path) -> PreTrainedConfig | None:
    """What transformers shall know of the model, where the tokenizer itself names its class; else None.

    Then the model's type is all that it asks for. Left to itself it would make the model's config, and for Llama that
    imports all modeling code.
    """
    model, own = _json_object(folder / "config.json"), _json_object(folder / "tokenizer_config.json")
    if "model_type" not in model or not own.get("tokenizer_class"):
        return None
    config = PreTrainedConfig()
    config.model_type = model["model_type"]  # type: ignore[misc] # a class's own, but read from the instance
    return config


def _json_object(file: Path) -> dict[str, Any]:
    found = json.loads(file.read_bytes()) if file.is_file() else {}
    return found if isinstance(found, dict) else {}


def _character_level(alphabet: str) -> Tokenizer:
    # WordLevel without an unknown token refuses what it does not know; BPE would drop it silently.
    backend = Tokenizer(WordLevel({char: index for index, char in enumerate(alphabet)}))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return backend


def _byte_level() -> Tokenizer:
    symbols = symbols_of_bytes()
    backend = Tokenizer(BPE(vocab={symbol: byte for byte, symbol in enumerate(symbols)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _known_characters(tokenizer: PreTrainedTokenizerBase) -> frozenset[str]:
    """The alphabet of a Character tokenizer; empty for every other one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.model, WordLevel) or backend.model.unk_token in backend.get_vocab():
        return frozenset()
    return frozenset(token for token in backend.get_vocab(with_added_tokens=False) if len(token) == 1)


def _without_special_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    for token in tokenizer.all_special_tokens:
        text = text.replace(token, "")
    return text


def _shortened(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[:limit] + "..."


class TextDecoder(Protocol):
    """Turns token ids into text."""

    def __call__(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """One string per sequence."""
        ...
