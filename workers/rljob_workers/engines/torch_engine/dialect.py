"""SGLang's dialect as this server reads and writes it: bodies to batches and controls, batches to replies.

Pure. Called by the HTTP edge. A field that this engine does not honour is refused by name, never ignored; SGLang's
neutral values of such fields are taken, so that its clients need no change. Extensions of ours: `compact`,
`progress_seconds`, `progress_tokens`, `weight_versions`, `lineage`, the incarnation.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import VersionSpan
from rljob_workers.engines.torch_engine.requests import (
    FINISH_NAMES,
    BadRequest,
    Batch,
    EndReason,
    Growth,
    PauseMode,
    PromptGroup,
    Sent,
)
from rljob_workers.engines.torch_engine.stop_texts import StopTexts
from rljob_workers.models.tokenizers import decode_tokens, encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "repetition_penalty": (1, None),
    "min_new_tokens": (0, None),
    "skip_special_tokens": (True, False, None),
    "spaces_between_special_tokens": (True, None),
    "no_stop_trim": (False, None),
    "regex": (None,),
    "json_schema": (None,),
    "ebnf": (None,),
    "stream": (False, None),
    "logprob_start_len": (-1, None),
    "top_logprobs_num": (0, None),
    "return_text_in_logprobs": (False, None),
    "lora_path": (None,),
    "image_data": (None,),
}
"""Fields of SGLang that this engine has nothing to do for at these values."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the dialect knows of the model."""

    name: str
    """Path, or `config` or `simulated` for a model without one."""
    vocab_size: int
    max_positions: int
    """Longest prompt + output, in tokens."""
    dtype: str
    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: frozenset[int]


class ControlBody(BaseModel):
    """Base of every body: `refuse_unknown` checks unknown fields."""

    model_config = ConfigDict(extra="allow", strict=False)


_BodyT = TypeVar("_BodyT", bound=ControlBody)


StopText = Annotated[str, Field(min_length=1)]


class SamplingBody(ControlBody):
    """`sampling_params` of one prompt."""

    n: int = Field(default=1, ge=1, le=65536)
    max_new_tokens: int = Field(default=128, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=1000)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    stop_token_ids: list[int] | None = None
    stop: list[StopText] | StopText | None = Field(default=None)
    ignore_eos: bool = False
    sampling_seed: int | None = Field(default=None, ge=0, lt=2**64)


class GenerateBody(ControlBody):
    """Body of `/generate`. A list of prompts takes one `sampling_params` for all, or a list of as many."""

    text: str | list[str] | None = None
    input_ids: list[list[int]] | list[int] | None = None
    sampling_params: SamplingBody | list[SamplingBody] = SamplingBody()
    rid: str | list[str] | None = None
    return_logprob: bool = False
    compact: bool = False
    progress_seconds: float | None = Field(default=None, gt=0)
    """The reply begins after so many seconds, and counts in lines of JSON the tokens until now, again and again. With
    `compact` they have the samples that have ended, and the last line has only the others."""
    progress_tokens: bool = False
    """Those lines have also the tokens of samples that go on, each once."""


class GenerateRequest:
    """A body that was understood: groups to run and how to answer."""

    def __init__(self, body: GenerateBody, groups: list[PromptGroup], *, is_single: bool) -> None:
        """`is_single`: one prompt that was not in a list."""
        self.body = body
        self.groups = groups
        self.is_single = is_single


def parse_body(kind: type[_BodyT], raw: bytes) -> _BodyT:
    """A body as its model; BadRequest names the field, the value and what is wrong."""
    try:
        body = kind.model_validate(orjson.loads(raw or b"{}"))
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not JSON: {error}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise BadRequest(f"{where}: {str(first.get('input'))[:100]} is refused: {first['msg']}.") from error
    refuse_unknown(body, "")
    return body


def refuse_unknown(body: BaseModel, prefix: str) -> None:
    """BadRequest for fields that mean something that this engine does not do."""
    for field, value in (body.model_extra or {}).items():
        if field not in _NEUTRAL or value not in _NEUTRAL[field]:
            raise BadRequest(f"{prefix}{field}: {value!r} is not supported by the torch engine. Leave the field out.")


def parse_generate(raw: bytes, model: ServedModel) -> GenerateRequest:
    """Reads the body of `/generate`; a prompt without `sampling_seed` gets a random one."""
    body = parse_body(GenerateBody, raw)
    prompts, is_single = _prompts(body, model.tokenizer)
    params = _per_prompt(body.sampling_params, len(prompts), "sampling_params")
    rids = _per_prompt(body.rid, len(prompts), "rid")
    groups = []
    for index, (prompt, given) in enumerate(zip(prompts, params, strict=True)):
        refuse_unknown(given, "sampling_params.")
        _check_tokens(prompt, model.vocab_size, f"input_ids[{index}]")
        groups.append(
            PromptGroup(
                rid=rids[index] or secrets.token_hex(8),
                prompt=prompt,
                num_samples=given.n,
                seed=secrets.randbits(63) if given.sampling_seed is None else given.sampling_seed,
                max_new_tokens=given.max_new_tokens,
                temperature=given.temperature,
                top_p=given.top_p,
                top_k=max(given.top_k, 0),
                stop_token_ids=frozenset(given.stop_token_ids or ())
                | (frozenset() if given.ignore_eos else model.eos_token_ids),
                min_p=given.min_p or 0.0,
                stop=StopTexts.of([given.stop] if isinstance(given.stop, str) else given.stop or (), model.tokenizer),
            )
        )
    if isinstance(body.rid, str) and len(groups) > 1:
        raise BadRequest("rid: one rid for several prompts. Give a list with one rid per prompt.")
    return GenerateRequest(body, groups, is_single=is_single)


def _prompts(body: GenerateBody, tokenizer: PreTrainedTokenizerBase) -> tuple[list[list[int]], bool]:
    if (body.text is None) == (body.input_ids is None):
        raise BadRequest("text, input_ids: give exactly one of them.")
    if body.text is not None:
        texts = [body.text] if isinstance(body.text, str) else body.text
        try:
            prompts = [encode_prompt(tokenizer, text) for text in texts]
        except ValueError as error:
            raise BadRequest(f"text: {error}") from error
        is_single = isinstance(body.text, str)
    else:
        given: Any = body.input_ids
        is_single = not given or not isinstance(given[0], list)
        prompts = [given] if is_single else given
    if not prompts:
        raise BadRequest("text, input_ids: the list of prompts is empty. Give at least one prompt.")
    return prompts, is_single


def _per_prompt(value: Any, count: int, field: str) -> list[Any]:  # noqa: ANN401 (a field of either shape)
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise BadRequest(f"{field}: {len(value)} are given for {count} prompts. Give one for all, or one per prompt.")
    return value


def _check_tokens(tokens: list[int], vocab_size: int, field: str) -> None:
    """BadRequest for an empty list, and for a token that the model does not know."""
    if not tokens:
        raise BadRequest(f"{field}: the prompt is empty. Give at least one token.")
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        wrong = next(token for token in tokens if not 0 <= token < vocab_size)
        raise BadRequest(f"{field}: token {wrong} is not in the vocabulary (0 to {vocab_size - 1}).")


def render_generate(request: GenerateRequest, batch: Batch, sent: Sent, tokenizer: PreTrainedTokenizerBase) -> bytes:
    """The reply of a batch that is done without error; a compact one has what was not `sent`."""
    if request.body.compact:
        return orjson.dumps(_render_growth(batch.growth(sent)), option=orjson.OPT_SERIALIZE_NUMPY)
    spans = batch.spans()
    lengths = batch.lengths.tolist()
    replies = [
        _render_sample(request, batch, group, row, spans[row], lengths[row], tokenizer)
        for index, group in enumerate(batch.groups)
        for row in range(batch.first_rows[index], batch.first_rows[index + 1])
    ]
    is_alone = request.is_single and len(replies) == 1
    return orjson.dumps(replies[0] if is_alone else replies, option=orjson.OPT_SERIALIZE_NUMPY)


def _render_sample(
    request: GenerateRequest,
    batch: Batch,
    group: PromptGroup,
    row: int,
    spans: list[VersionSpan],
    length: int,
    tokenizer: PreTrainedTokenizerBase,
) -> dict[str, Any]:
    tokens = batch.tokens[row, :length].tolist()
    text = None if group.stop is None else group.stop.found([tokens])[0]
    meta: dict[str, Any] = {
        "id": group.rid,
        "finish_reason": _finish_reason(EndReason(int(batch.reasons[row])), group, tokens, text),
        "prompt_tokens": len(group.prompt),
        "completion_tokens": length,
        "cached_tokens": 0,
        "weight_version": str(spans[-1].weight.version) if spans else None,
        "weight_versions": [_render_span(span) for span in spans],
    }
    if request.body.return_logprob:
        # float32 goes out as its shortest decimal, so that the reader's float32 is the same number.
        log_probs = batch.log_probs[row, :length]
        meta["output_token_logprobs"] = [[value, token, None] for value, token in zip(log_probs, tokens, strict=True)]
    shown = decode_tokens(tokenizer, tokens)
    return {"text": shown if text is None else shown.partition(text)[0], "output_ids": tokens, "meta_info": meta}


def _finish_reason(reason: EndReason, group: PromptGroup, tokens: list[int], text: str | None) -> dict[str, Any]:
    match reason:
        case EndReason.STOP:
            return {"type": "stop", "matched": tokens[-1] if text is None else text}
        case EndReason.LENGTH:
            return {"type": "length", "length": group.max_new_tokens}
        case EndReason.ABORT:
            return {"type": "abort", "message": "Aborted by /abort_request, /pause_generation or a closed connection."}


def _render_span(span: VersionSpan) -> dict[str, int]:
    return {"lineage": span.weight.lineage, "version": span.weight.version, "start": span.start, "end": span.end}


def _render_growth(growth: Growth) -> dict[str, Any]:
    """Samples as flat arrays, in the order of prompts and samples; ten times cheaper to read and write."""
    weight, spans = growth.weight, growth.spans
    return {
        "rows": growth.rows,
        "starts": growth.starts,
        "lengths": growth.lengths,
        "output_ids": growth.tokens,
        "log_probs": growth.log_probs,
        "finish_reasons": growth.reasons,
        "finish_words": FINISH_NAMES,
        "weight": {"lineage": weight.lineage, "version": weight.version} if weight else None,
        "weight_versions": None if spans is None else [[_render_span(span) for span in row] for row in spans],
    }


def render_progress(num_tokens: int, growth: Growth | None) -> bytes:
    """A line of a reply that has begun; `growth` None: the reply is not compact."""
    line = {"progress": num_tokens} | ({} if growth is None else {"grown": _render_growth(growth)})
    return orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


class AbortBody(ControlBody):
    """`/abort_request`: exactly one of `rid` and `abort_all`."""

    rid: str | None = None
    abort_all: bool = False


class PauseBody(ControlBody):
    """`/pause_generation`."""

    mode: PauseMode = PauseMode.ABORT


class ScoreBody(ControlBody):
    """`/score_tokens`, an extension of ours."""

    input_ids: list[int] = Field(min_length=2)


def parse_score(raw: bytes, model: ServedModel) -> list[int]:
    """The tokens to score."""
    tokens = parse_body(ScoreBody, raw).input_ids
    _check_tokens(tokens, model.vocab_size, "input_ids")
    return tokens


class UpdateBody(ControlBody):
    """`/update_weights_from_disk`. `weight_version` is `7` with `lineage` beside it, or `lineage:version`."""

    model_path: Path
    weight_version: str | int
    lineage: int | None = Field(default=None, ge=0)
    flush_cache: bool = True
    abort_all_requests: bool = False


def parse_update(raw: bytes) -> tuple[UpdateBody, WeightId]:
    """The body, and the id that the weights are held under."""
    body = parse_body(UpdateBody, raw)
    lineage, _, version = str(body.weight_version).rpartition(":")
    given = lineage or (None if body.lineage is None else str(body.lineage))
    if given is None or not given.isdigit() or not version.isdigit():
        raise BadRequest(
            f"weight_version: {body.weight_version!r} with lineage {body.lineage} names no weight. "
            "Give a whole number and lineage, or 'lineage:version'."
        )
    return body, WeightId(lineage=Lineage(int(given)), version=WeightVersion(int(version)))
