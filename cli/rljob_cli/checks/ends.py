"""Checks of the ends of answers: whether a token ends them, and whether it is the one that a chat ends with.

For the checks of a manifest, beside `checks.models`. Reads files of model and tokenizer, and no tokenizer of a library.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.model_files.ends import ALWAYS_END, GENERATION_FILE, EndTokens, end_tokens
from rljob_api.model_files.tokens import added_in, end_of_sequence, policy_rows, tokens_of
from rljob_api.spec.model import SPECIAL_TOKENS
from rljob_cli.checks.findings import Finding, problem, warning
from rljob_cli.checks.models import json_object
from rljob_cli.checks.prompts import prompts_of
from rljob_cli.checks.turn_ends import end_of_turn, template_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rljob_api.spec import RLJobSpec
    from rljob_api.spec.model import ModelSpec


_SAMPLING, _MODEL, _DATA = "spec.rollout.sampling", "spec.model", "spec.data"


_WITHOUT_DEFAULTS = (None, "PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of tokenizers that have no end-of-sequence token but the one that their files name."""


def end_findings(spec: RLJobSpec) -> Iterator[Finding]:
    """Findings on a job with absolute paths; none where its model is not here, or engines only pretend to answer."""
    model = spec.model
    folder = None if model.path is None else Path(model.path)
    described = {} if folder is None else json_object(folder / "config.json")
    tokens = tokens_of(model)
    if described is None or tokens is None or not spec.roles.rollout.engine.traits.computes:
        return
    try:
        ends = end_tokens(described, folder, _of_tokenizer(model, tokens))
    except ValueError as error:
        yield problem(f"spec.{error}", _MODEL)
        return
    rows = policy_rows(model)
    if rows is not None:
        yield from _unknown_tokens(spec, rows)
        yield from _never_drawn(ends, folder, rows)
    usable = {token for token in ends.all if rows is None or token < rows}
    stops = usable | set(spec.rollout.sampling.stop_token_ids)
    if not stops and not spec.rollout.sampling.stop and not _has_hidden_default(model):
        yield warning(
            f"{_SAMPLING}.stopTokenIds: nothing ends an answer of this model: neither config.json nor {GENERATION_FILE}"
            " nor its tokenizer names a token that it can draw. Each answer is as long as maxNewTokens then. Give the"
            " token that ends one.",
            _MODEL,
        )
    elif stops:
        yield from _end_of_turn_findings(spec, tokens, stops)


def _of_tokenizer(model: ModelSpec, tokens: Mapping[int, str]) -> frozenset[int]:
    folder = _tokenizer_folder(model)
    eos = SPECIAL_TOKENS[0] if folder is None else end_of_sequence(folder)
    return frozenset(token for token, text in tokens.items() if text == eos or text in ALWAYS_END)


def _tokenizer_folder(model: ModelSpec) -> Path | None:
    """None: the tokenizer is made with the model."""
    given = model.tokenizer_path or model.path
    return None if given is None else Path(given)


def _has_hidden_default(model: ModelSpec) -> bool:
    """Whether the tokenizer's class may have an end of its own, which no file names."""
    folder = _tokenizer_folder(model)
    own = {} if folder is None else json_object(folder / "tokenizer_config.json") or {}
    return own.get("tokenizer_class") not in _WITHOUT_DEFAULTS


def _unknown_tokens(spec: RLJobSpec, rows: int) -> Iterator[Finding]:
    given = [(_SAMPLING, spec.rollout.sampling.stop_token_ids)]
    sets = () if spec.evaluation is None else spec.evaluation.sets
    given += [
        (f"spec.evaluation.sets[{place}].sampling", each.sampling.stop_token_ids or [])
        for place, each in enumerate(sets)
        if each.sampling is not None
    ]
    for field, ids in given:
        for token in ids:
            if token >= rows:
                yield problem(
                    f"{field}.stopTokenIds: {token} is no token of the model, which has {rows} (0 to {rows - 1}). Give"
                    " the number of one that its tokenizer has.",
                    _MODEL,
                )


def _never_drawn(ends: EndTokens, folder: Path | None, rows: int) -> Iterator[Finding]:
    for file, named in (("config.json", ends.of_config), (GENERATION_FILE, ends.of_generation)):
        for token in sorted(token for token in named if token >= rows):
            yield warning(
                f"{_MODEL}.path: {folder}/{file} has {token} in eos_token_id, but the model has {rows} tokens (0 to"
                f" {rows - 1}), so that it ends no answer. Give the file that belongs to the weights.",
                _MODEL,
            )


def _end_of_turn_findings(spec: RLJobSpec, tokens: Mapping[int, str], stops: set[int]) -> Iterator[Finding]:
    """Findings on prompts that are rendered by a chat template."""
    data, folder = spec.data, _tokenizer_folder(spec.model)
    if not data.apply_chat_template and not _begins_with_chat(spec):
        return
    text = template_text(data.chat_template, folder)
    added = dict(enumerate(SPECIAL_TOKENS, len(tokens) - 2)) if folder is None else added_in(folder)
    eos = SPECIAL_TOKENS[0] if folder is None else end_of_sequence(folder)
    variables = {"eos_token": eos or "", "bos_token": "", **(data.chat_template.kwargs if data.chat_template else {})}
    turn = None if text is None else end_of_turn(text, variables, added.values())
    numbers = {token for token, content in added.items() if content == turn}
    if turn is None or numbers & stops or turn in spec.rollout.sampling.stop:
        return
    named = ", ".join(f"{token} ({tokens.get(token, '?')})" for token in sorted(stops))
    yield warning(
        f"{_SAMPLING}.stopTokenIds: the chat template ends an assistant's turn with {turn}, at which no answer ends:"
        f" only {named} end one. Give stopTokenIds: [{min(numbers)}], or name it in eos_token_id of {GENERATION_FILE}.",
        _MODEL,
        _DATA,
    )


def _begins_with_chat(spec: RLJobSpec) -> bool:
    try:
        return any(isinstance(next(prompts_of(file), None), list) for file in spec.data.files)
    except (OSError, ValueError, KeyError, TypeError):  # the check of prompts names what is wrong
        return False
