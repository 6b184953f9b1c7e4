"""Defaults of sets of an evaluation: what they do not say is as training has it, in `spec.data` and `rollout.sampling`.

`open_defaults` fills it in when a job is resolved, for every door. Checks and workers read sets of resolved jobs
(`stated_data`, `stated_sampling`), which say all. A null says nothing; an empty text, list or object says none. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rljob_api.base import ApiModel
from rljob_api.spec.data import ChatTemplateSpec, DataSpec, PromptsSpec
from rljob_api.spec.evaluation import (
    EvaluationChatTemplateSpec,
    EvaluationDataSpec,
    EvaluationSamplingSpec,
    EvaluationSetSpec,
    EvaluationSpec,
)
from rljob_api.spec.rollout import SamplingSpec

_PLAIN = ("prompt_key", "label_key", "apply_chat_template", "system_prompt")

_INHERITED = frozenset({*_PLAIN, "source_key", "chat_template"})

_WITHOUT_TRAINING = DataSpec.model_construct()
"""Defaults of sets in releases in which they took nothing from training but `sampling` as a whole."""


def data_of(own: EvaluationDataSpec, training: DataSpec) -> DataSpec:
    """The prompts of a set. Given are the fields that the set gives, and of those that it takes the given ones."""
    values = {name: getattr(own, name) for name in PromptsSpec.model_fields}
    values |= {name: _own_or(own, name, getattr(training, name)) for name in _PLAIN}
    if own.reasoning_gym is None:  # its tasks have no lines with keys
        values["source_key"] = _own_or(own, "source_key", training.source_key)
    values["chat_template"] = _template_of(own, training)
    stated = {name for name in own.model_fields_set if name not in _INHERITED or getattr(own, name) is not None}
    given = stated | (training.model_fields_set & _INHERITED)
    return DataSpec.model_construct(given, **values)


def sampling_of(own: EvaluationSamplingSpec | None, training: SamplingSpec) -> SamplingSpec:
    """How the tokens of a set are drawn; the temperature may be 0."""
    if own is None:
        return training
    own_values = {name: value for name, value in _values(EvaluationSamplingSpec, own).items() if value is not None}
    if own.min_p == 0:  # which SamplingSpec says by a null
        own_values["min_p"] = None
    return training.model_copy(update=own_values)


def stated_data(own: EvaluationDataSpec) -> DataSpec:
    """The prompts of a set of a resolved job. A null labelKey that it was stored with means that there is no label."""
    found = data_of(own, _WITHOUT_TRAINING)
    is_without_label = own.label_key is None and "label_key" in own.model_fields_set
    return found.model_copy(update={"label_key": None}) if is_without_label else found


def stated_sampling(own: EvaluationSamplingSpec | None, training: SamplingSpec) -> SamplingSpec:
    """How the tokens of a set of a resolved job are drawn."""
    return training if own is None else sampling_of(own, SamplingSpec())


def filled(each: EvaluationSetSpec, data: DataSpec, sampling: SamplingSpec) -> EvaluationSetSpec:
    """The set with all that it takes from training written out, none as what says none."""
    found = data_of(each.data, data)
    template = found.chat_template or ChatTemplateSpec()
    nones = {
        "label_key": found.label_key or "",
        "source_key": None if found.reasoning_gym is not None else found.source_key or "",
        "system_prompt": found.system_prompt or "",
        "chat_template": EvaluationChatTemplateSpec.model_construct(
            kwargs=template.kwargs, tools=template.tools, file=template.file or ""
        ),
    }
    values = _values(EvaluationDataSpec, found) | nones
    filled_data = EvaluationDataSpec.model_construct(found.model_fields_set, **values)
    drawn = _values(EvaluationSamplingSpec, sampling_of(each.sampling, sampling))
    drawn["min_p"] = drawn["min_p"] or 0.0
    filled_sampling = EvaluationSamplingSpec.model_construct(**drawn)
    return each.model_copy(update={"data": filled_data, "sampling": filled_sampling})


def filled_alone(each: EvaluationSetSpec) -> EvaluationSetSpec:
    """The set as releases filled it in which it took nothing from training: its job keeps its revision."""
    values = _values(EvaluationDataSpec, stated_data(each.data))
    values["label_key"] = values["label_key"] or ""
    if values["chat_template"] is not None:
        template = _values(EvaluationChatTemplateSpec, values["chat_template"])
        values["chat_template"] = EvaluationChatTemplateSpec.model_construct(**template)
    update: dict[str, Any] = {"data": EvaluationDataSpec.model_construct(**values)}
    if each.sampling is not None:
        drawn = _values(EvaluationSamplingSpec, sampling_of(each.sampling, SamplingSpec()))
        update["sampling"] = EvaluationSamplingSpec.model_construct(**drawn)
    return each.model_copy(update=update)


def are_filled(evaluation: EvaluationSpec | None) -> bool:
    """Whether the sets of a stored job were written by `filled`, which leaves no field null.

    Sets of earlier releases have no `minP`, and `filled_alone` leaves it null where nothing gives it.
    """
    return all(_is_filled(each) for each in (() if evaluation is None else evaluation.sets))


def _is_filled(each: EvaluationSetSpec) -> bool:
    if each.sampling is None or each.data.chat_template is None:
        return False
    data = {name: getattr(each.data, name) for name in _INHERITED}
    if each.data.reasoning_gym is not None:
        del data["source_key"]
    template = _values(EvaluationChatTemplateSpec, each.data.chat_template)
    drawn = _values(EvaluationSamplingSpec, each.sampling)
    return None not in (*data.values(), *template.values(), *drawn.values())


@dataclass(frozen=True, slots=True)
class TakenField:
    """A field that a set takes from training, where that makes a difference."""

    field: str
    """Below the set, in the manifest's spelling."""
    source: str
    """Below `spec`, likewise."""
    value: Any
    alone: Any
    """The value without training."""


def taken_fields(each: EvaluationSetSpec, data: DataSpec, sampling: SamplingSpec) -> Iterator[TakenField]:
    """All of a set that was not filled yet."""
    yield from _differences("data", "data", data_of(each.data, data), stated_data(each.data))
    if each.sampling is not None:
        alone = sampling_of(each.sampling, SamplingSpec())
        yield from _differences("sampling", "rollout.sampling", sampling_of(each.sampling, sampling), alone)


def _differences(field: str, source: str, taken: ApiModel, alone: ApiModel) -> Iterator[TakenField]:
    values, others = taken.model_dump(mode="json"), alone.model_dump(mode="json")
    yield from (
        TakenField(f"{field}.{name}", f"{source}.{name}", value, others[name])
        for name, value in values.items()
        if value != others[name]
    )


def _values(model: type[ApiModel], source: ApiModel) -> dict[str, Any]:
    """Values that `source`, which has fields of the same names, has for the fields of a model."""
    return {name: getattr(source, name) for name in model.model_fields}


def _own_or(own: ApiModel, name: str, otherwise: Any) -> Any:  # noqa: ANN401 - of any field
    """None where an empty text says none."""
    value = getattr(own, name)
    value = otherwise if value is None else value
    return None if value == "" else value


def _template_of(own: EvaluationDataSpec, training: DataSpec) -> ChatTemplateSpec | None:
    """None where the tokenizer's own template gets the messages alone."""
    template = own.chat_template or EvaluationChatTemplateSpec()
    otherwise = training.chat_template or ChatTemplateSpec()
    values = {name: _own_or(template, name, getattr(otherwise, name)) for name in ChatTemplateSpec.model_fields}
    return ChatTemplateSpec.model_construct(**values) if any(values.values()) else None
