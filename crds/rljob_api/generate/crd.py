"""The CustomResourceDefinition, generated from the models.

Pure; `rljob crd` prints it, and CI compares the committed file. A structural schema has no $ref,
no anyOf with null, and exclusive bounds as booleans: most of this module converts those.
"""

import re
from enum import Enum
from functools import cache
from typing import Any

import yaml

from rljob_api.cluster import API_GROUP, API_VERSION, RLJOB_KIND, RLJOB_PLURAL
from rljob_api.cluster_rules import SEEN, cluster_validations
from rljob_api.generate.cel import unchanged, with_defaults
from rljob_api.revision import GROWING, REFUSED, WAY_OUT, Row
from rljob_api.roles import SCALED_ROLE, field_name
from rljob_api.rule import VALIDATIONS
from rljob_api.spec import FORM_OF_NAME, JOB_NAME, RLJobSpec
from rljob_api.status import RLJobStatus

Schema = dict[str, Any]

WITHOUT_SERVER_DEFAULT = frozenset(
    {
        "packing",
        "schedule",
        "minLearningRate",
        "maxSkippedSteps",
        "gpuResource",
        "rendezvousTimeoutSeconds",
        "truncated",
        "noVariance",
        "engine",
        "onFailure",
        "maxFailedShare",
        "maxPromptTokens",
        "longPrompts",
        "generationsPerRollout",
        "concurrency",
        "stop",
        "scheduling",
        "infrastructure",
        "onDelete",
        "autoscaling",
        "perSample",
        "shards",
        "order",
        "applyChatTemplate",
    }
)
"""Fields whose defaults readers fill in, and the API server does not: it would write them into every job that it reads,
and the operator of the release before, which refuses a field that it does not know, could not be gone back to. Stored
jobs lack them since, and rules test them with `has`: none leaves this list."""


class Defaults(Enum):
    """The `default`s that a schema has."""

    ALL = "all"
    SERVER = "server"
    """The API server fills these in."""
    NONE = "none"


_KEEPS_UNKNOWN = "x-kubernetes-preserve-unknown-fields"
"""Marks a node of which any field may be given."""


_REPLACED: Schema = {"x-kubernetes-map-type": "atomic"}
"""An object that who applies it owns and replaces as a whole, as every list here.

Each optional object without a default, for which {} and absence may differ, and each of which the schema knows no
fields. Applied field by field, {} in the place of {timeoutSeconds: 9} takes away what the manager had owned, and an API
server leaves null for an object of which nothing is left.

The API server fills in no default inside. What is stored is then what was applied: where it were more, all others
who apply the same would be in conflict with the first."""


LEFT_OPEN = frozenset({"gpus", "actorFwd", "advantages", "itersPerTrainUpdate"})
"""Fields whose own default depends on the rest of the job (`open_defaults`): the API server fills in none, so that
readers see what was given."""


_DROPPED = frozenset({"title", "$defs", "additionalProperties", "const", "default", "anyOf"})


INT_OR_STRING = "x-kubernetes-int-or-string"
"""A node that has no type."""


_ALTERNATIVES = re.compile(r"\^\((\w+(?:\|\w+)*)\)\$")
"""The pattern that stands for an enum that may be null."""


_WIDTHS = {"integer": "int64", "number": "double"}


_REPLICAS = ("roles", field_name(SCALED_ROLE), "replicas")
"""The field of the scale subresource. Its default has to be in the object: an autoscaler is refused the scale of a job
that has no such field. It takes nothing back: a manifest that is applied without the field leaves it as it is."""


_TRAINING = ".status.training"


PRINTER_COLUMNS = (
    ("PHASE", "string", ".status.phase", "One word for the conditions"),
    ("READY", "string", '.status.conditions[?(@.type=="Ready")].status', "Whether every role is ready"),
    ("STEP", "integer", f"{_TRAINING}.step", "Last trained rollout"),
    ("REWARD", "number", f"{_TRAINING}.reward", "Mean reward of the last step"),
    ("RESTARTS", "integer", ".status.restart.globalRestarts", "Global restarts"),
    ("REASON", "string", ".status.reason", "Why the phase is what it is, or the reason of the last restart"),
    ("AGE", "date", ".metadata.creationTimestamp", "Time since creation"),
)


WIDE_COLUMNS = (
    ("EPOCH", "integer", ".status.restart.epoch", "Incarnation of the whole job"),
    ("ROLLOUTS", "integer", f'.status.roles[?(@.name=="{SCALED_ROLE}")].ready', "Rollout replicas that are ready"),
    ("WANTED", "integer", ".status.scaling.desired", "Rollout replicas that are wanted"),
    ("WEIGHTS", "integer", f"{_TRAINING}.weightVersion", "Newest published weight version"),
    ("CHECKPOINT", "integer", f"{_TRAINING}.checkpoint", "Version of the last recorded checkpoint"),
    ("SAMPLES/S", "integer", f"{_TRAINING}.samplesPerSecond", "Samples of the last step by its seconds"),
    ("STALENESS", "integer", f"{_TRAINING}.staleness.current", "Staleness of the last step"),
    ("EVALUATION", "string", ".status.evaluation.summary", "Mean reward of each set, and the version"),
    ("QUEUE", "integer", f"{_TRAINING}.queueDepth", "Groups that are issued and not trained"),
)
"""Shown by `kubectl get -o wide`."""


def crd() -> Schema:
    """The definition as it is applied to a cluster."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{RLJOB_PLURAL}.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "names": {
                "kind": RLJOB_KIND,
                "listKind": f"{RLJOB_KIND}List",
                "plural": RLJOB_PLURAL,
                "singular": RLJOB_KIND.lower(),
                "shortNames": ["rlj"],
                "categories": ["all"],
            },
            "scope": "Namespaced",
            "versions": [_version()],
        },
    }


def crd_text() -> str:
    """The definition as YAML, with a line that says where it comes from."""
    text = yaml.dump(crd(), Dumper=_PlainDumper, sort_keys=False, width=120, allow_unicode=True)
    return f"# Generated by `make crd` from the models of rljob_api. Change those, not this.\n{text}"


def _version() -> Schema:
    return {
        "name": API_VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "description": description} | priority
            for columns, priority in ((PRINTER_COLUMNS, {}), (WIDE_COLUMNS, {"priority": 1}))
            for name, kind, path, description in columns
        ],
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": f".spec.{'.'.join(_REPLICAS)}",
                "statusReplicasPath": ".status.scaling.replicas",
                "labelSelectorPath": ".status.scaling.selector",
            },
        },
        "schema": {"openAPIV3Schema": _resource_schema()},
    }


def _resource_schema() -> Schema:
    return with_defaults(_resource(_spec(Defaults.SERVER)), _resource(_spec(Defaults.ALL)))


def _resource(spec: Schema) -> Schema:
    return {
        "type": "object",
        "description": "A disaggregated reinforcement-learning post-training job of one language model.",
        "required": ["spec"],
        VALIDATIONS: [
            # Not for an object that the operator has seen, which a new one cannot claim: one that was stored before
            # this rule may begin with a digit, and must still get its condition, and go.
            {
                "rule": f"{SEEN} || self.metadata.name.matches('{JOB_NAME}')",
                "message": f"metadata.name is not of the right form. {FORM_OF_NAME}",
            },
            *cluster_validations(),
        ],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": _status_schema(),
        },
    }


@cache
def spec_schema(defaults: Defaults = Defaults.SERVER) -> Schema:
    """The structural schema of `spec`; callers change nothing in it."""
    return with_defaults(_spec(defaults), _spec(Defaults.ALL))


@cache
def _source() -> Schema:
    return RLJobSpec.model_json_schema()


@cache
def _spec(defaults: Defaults) -> Schema:
    """Its rules read fields as if each had its default."""
    source = _source()
    schema = _structural(source, source["$defs"], defaults)
    full = schema if defaults is Defaults.ALL else _spec(Defaults.ALL)
    schema[VALIDATIONS] = [
        *schema[VALIDATIONS],
        *(_transition(row, full) for row in REFUSED),
        *(_growth(row) for row in GROWING),
    ]
    return schema


def _transition(row: Row, schema: Schema) -> dict[str, str]:
    """The refusal of a change as a rule over the spec, which is there before and after; the field itself may not be."""
    *above, name = row.field.split(".")
    for step in above:
        schema = schema["properties"][step]
    is_required = name in schema.get("required", ())
    rule = unchanged(f".{row.field}", schema["properties"][name], is_required=is_required)
    return {"rule": rule, "fieldPath": f".{row.field}", "message": f"{row.refusal()} {WAY_OUT}."}


def _growth(row: Row) -> dict[str, str]:
    """The refusal of a smaller quantity. The field has a default, so it is always there."""
    new, old = (f"quantity(string({spec}.{row.field}))" for spec in ("self", "oldSelf"))
    message = f"{row.refusal()} Set it back, or give a larger one."
    return {"rule": f"{new}.compareTo({old}) >= 0", "fieldPath": f".{row.field}", "message": message}


def _status_schema() -> Schema:
    """The structural schema of `status`, without defaults: a field that was not written is absent.

    But for a generation that no spec has, so that what reads it (kstatus) takes no job that the operator has not seen
    for one that is as its spec asks.
    """
    source = RLJobStatus.model_json_schema()
    schema = _structural(source, source["$defs"], Defaults.NONE)
    schema["default"] = {"observedGeneration": 0}
    schema["properties"]["conditions"] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    schema["properties"]["roles"] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    return schema


def _structural(source: Schema, definitions: dict[str, Schema], defaults: Defaults) -> Schema:
    """Inlines references, folds null into `nullable`, and rewrites what OpenAPI v3.0 spells differently."""
    source = _without_reference(source, definitions)
    schema: Schema = {key: value for key, value in source.items() if key not in _DROPPED}
    if defaults is not Defaults.NONE and source.get("default") is not None:
        schema["default"] = _written(source["default"], defaults)
    if "properties" in source:
        schema["properties"] = {
            name: _property(name, part, source, definitions, defaults) for name, part in source["properties"].items()
        }
    if "items" in source:
        schema["x-kubernetes-list-type"] = "atomic"
        schema["items"] = _structural(
            source["items"], definitions, Defaults.NONE if defaults is Defaults.SERVER else defaults
        )
    if schema.get("nullable") and "enum" in schema:
        # The API server refuses null for an enum, whatever `nullable` is, and also if the enum has it.
        schema["pattern"] = f"^({'|'.join(schema.pop('enum'))})$"
    schema |= _open_object(source, definitions)
    _bound(schema)
    return _ordered(schema)


def _property(name: str, source: Schema, above: Schema, definitions: dict[str, Schema], defaults: Defaults) -> Schema:
    source = _without_reference(source, definitions)
    if name in LEFT_OPEN:
        source = {key: value for key, value in source.items() if key != "default"}
    if defaults is not Defaults.SERVER:
        return _structural(source, definitions, defaults)
    own = Defaults.NONE if name in WITHOUT_SERVER_DEFAULT else defaults
    if source.get("type") != "object" or name in above.get("required", ()):
        return _structural(source, definitions, own)
    if source.get("additionalProperties") is True:
        return _structural(source, definitions, own) | _REPLACED
    if own is Defaults.NONE or source.get("default") is None:
        return _structural(source, definitions, Defaults.NONE) | _REPLACED
    return _structural(source, definitions, own)


def enum_values(field: Schema) -> list[str]:
    """The values of an enum; none where the field is no enum."""
    alternatives = _ALTERNATIVES.fullmatch(field.get("pattern", ""))
    return alternatives[1].split("|") if alternatives else list(field.get("enum", ()))


def _without_reference(source: Schema, definitions: dict[str, Schema]) -> Schema:
    """One flat node: what stands beside a reference (the field's description, its default) wins over the referred."""
    if "anyOf" in source and INT_OR_STRING not in source:
        (chosen,) = [part for part in source["anyOf"] if part.get("type") != "null"]
        beside = {key: value for key, value in source.items() if key != "anyOf"}
        return _without_reference(chosen | beside, definitions) | {"nullable": True}
    if "$ref" in source:
        referred = definitions[source["$ref"].removeprefix("#/$defs/")]
        beside = {key: value for key, value in source.items() if key != "$ref"}
        return _without_reference(referred, definitions) | beside | _joined_description(source, referred)
    return source


def _joined_description(field: Schema, model: Schema) -> Schema:
    """An object is described by its field and by its model; an enum by its field alone."""
    texts = [field.get("description"), model.get("description") if model.get("type") == "object" else None]
    description = " ".join(dict.fromkeys(text for text in texts if text))
    return {"description": description} if description else {}


def _open_object(source: Schema, definitions: dict[str, Schema]) -> Schema:
    """Maps: typed ones keep their values' schema, untyped ones keep unknown fields. Known objects are pruned."""
    values = source.get("additionalProperties")
    if values is True:
        return {_KEEPS_UNKNOWN: True}
    if isinstance(values, dict):
        return {"additionalProperties": _structural(values, definitions, Defaults.NONE)}
    return {}


def _bound(schema: Schema) -> None:
    for side, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if exclusive in schema:
            schema[side] = schema.pop(exclusive)
            schema[exclusive] = True
    if schema.get("type") in _WIDTHS:
        schema["format"] = _WIDTHS[schema["type"]]


def _written(value: object, defaults: Defaults) -> object:
    """A default without what is left open, and nulls; what the API server writes, without what it must not.

    A field that is not nullable would refuse a null, and a nullable one does not need it.
    """
    if isinstance(value, dict):
        left_out = LEFT_OPEN | WITHOUT_SERVER_DEFAULT if defaults is Defaults.SERVER else LEFT_OPEN
        return {
            key: _written(inner, defaults) for key, inner in value.items() if inner is not None and key not in left_out
        }
    return value


_ORDER = ("type", "format", "nullable", "description", "enum", "pattern", "default")


def _ordered(schema: Schema) -> Schema:
    first = {key: schema[key] for key in _ORDER if key in schema}
    return first | {key: schema[key] for key in sorted(schema) if key not in first}


class _PlainDumper(yaml.SafeDumper):
    """No anchors: an applied file reads better with what it means."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the signature is yaml's
        return True
