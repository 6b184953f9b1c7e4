"""Which token each id of a model stands for, and how many ids it has, by its files or its config.

For checks of a manifest, for what makes tokenizers of a config, and for the role reference, whose teacher reads the
policy's tokens. Reads tokenizer.json, tokenizer_config.json and config.json, and imports no tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rljob_api.spec.model import SPECIAL_TOKENS, ModelSpec, TokenizerConfig, alphabet_of, tokenizer_size

FIELD = "roles.reference.modelPath"


_CURE = "Give a teacher with the policy's tokenizer."


def teacher_problem(
    model: ModelSpec, own: Mapping[int, str] | None, folder: Path, others: Mapping[int, str] | None
) -> str | None:
    """Why a teacher in `folder` does not read the tokens of the policy `model`, as a sentence; None: it does.

    `own` is what `tokens_of` says of the policy, and `others` what `tokens_in` says of the folder. None, too, where
    files do not say: one of them is None then.
    """
    if own is not None and others is not None and (different := _first_difference(own, others)) is not None:
        shown = ["no token" if token is None else repr(token) for token in (others.get(different), own.get(different))]
        return (
            f"{FIELD}: the tokenizer in {folder} is not the policy's: the id {different} is {shown[0]} there, but"
            f" {shown[1]} to the policy. {_CURE}"
        )
    wanted, rows = policy_rows(model), embedding_rows(_json_object(folder / "config.json") or {})
    # Families give their larger models more rows than their tokenizer has tokens: those are never asked for.
    is_same_tokenizer = own is not None and others is not None
    if wanted is None or rows is None or rows == wanted or (rows > wanted and is_same_tokenizer):
        return None
    return (
        f"{FIELD}: {folder} has a vocabulary of {rows} tokens, and the policy one of {wanted}, but both read the"
        f" policy's tokens. {_CURE}"
    )


def _first_difference(own: Mapping[int, str], others: Mapping[int, str]) -> int | None:
    return next((index for index in sorted({*own, *others}) if own.get(index) != others.get(index)), None)


def tokens_of(model: ModelSpec) -> Mapping[int, str] | None:
    """Id -> token of the tokenizer of `model`; None where its files are not here or do not say."""
    folder = model.tokenizer_path or model.path
    if folder is not None:
        return tokens_in(Path(folder))
    return None if model.config is None else made_tokens(model.config.tokenizer)


def tokens_in(folder: Path) -> Mapping[int, str] | None:
    """Id -> token of the tokenizer in a folder, added ones included; None without a tokenizer.json that says it."""
    described = _json_object(folder / "tokenizer.json")
    inner = None if described is None else described.get("model")
    vocabulary = inner.get("vocab") if isinstance(inner, dict) else None
    if not isinstance(vocabulary, dict | list):
        return None
    return {**dict(_entries(vocabulary)), **_added(folder, described)}


def added_in(folder: Path) -> Mapping[int, str]:
    """Id -> token of those that were added to the vocabulary of a folder's tokenizer, such as `<|im_end|>`."""
    return _added(folder, _json_object(folder / "tokenizer.json"))


def _added(folder: Path, described: dict[str, Any] | None) -> Mapping[int, str]:
    """`described`: the object in tokenizer.json, a file of megabytes that is read once."""
    found: dict[int, str] = {}
    added = (described or {}).get("added_tokens")
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, dict) and type(entry.get("id")) is int:
            found[entry["id"]] = str(entry.get("content"))
    more = (_json_object(folder / "tokenizer_config.json") or {}).get("added_tokens_decoder")
    for index, entry in more.items() if isinstance(more, dict) else ():
        if index.isdigit() and isinstance(entry, dict):
            found[int(index)] = str(entry.get("content"))
    return found


def _entries(vocabulary: dict[str, Any] | list[Any]) -> Iterator[tuple[int, str]]:
    """A table of ids, or (unigram models) a list of tokens with their scores."""
    if isinstance(vocabulary, dict):
        yield from ((index, token) for token, index in vocabulary.items() if type(index) is int)
        return
    yield from ((index, str(entry[0])) for index, entry in enumerate(vocabulary) if isinstance(entry, list) and entry)


def made_tokens(config: TokenizerConfig) -> Mapping[int, str]:
    """Id -> token of the tokenizer that is made from a config."""
    symbols = symbols_of_bytes() if config.kind == "Byte" else list(alphabet_of(config))
    return dict(enumerate([*symbols, *SPECIAL_TOKENS]))


def symbols_of_bytes() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary (Radford et al. 2019, GPT-2's table).

    Printable Latin-1 stands for itself; the others take code points from 256 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    replacements = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(replacements)) for byte in range(0x100)]


def end_of_sequence(folder: Path) -> str | None:
    """The token that ends a sequence, by the tokenizer of a folder; None where its files do not say."""
    given = (_json_object(folder / "tokenizer_config.json") or {}).get("eos_token")
    if isinstance(given, dict):
        given = given.get("content")
    return given if isinstance(given, str) else None


def embedding_rows(described: Mapping[str, Any]) -> int | None:
    """Ids of the model by a config.json, which may be more than its tokenizer has. None where it does not say."""
    inner = described.get("text_config")
    size = (inner if isinstance(inner, dict) else described).get("vocab_size")
    return size if type(size) is int else None


def policy_rows(model: ModelSpec) -> int | None:
    """Ids of a job's policy. None where its files do not say, or where another tokenizer's size is the vocabulary."""
    if model.config is None:
        return embedding_rows(_json_object(Path(model.path or "") / "config.json") or {})
    if model.config.vocab_size is None and model.tokenizer_path is not None:
        return None
    return model.config.vocab_size or tokenizer_size(model.config.tokenizer)


def _json_object(file: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is none."""
    try:
        described = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return described if isinstance(described, dict) else None
