"""What an API server records of who owns the fields of an object. Called by tests alone."""

from typing import Any

from rljob_operator.kube.api import FIELD_MANAGER

Json = dict[str, Any]


def fields_of(value: object) -> Json:
    """`fieldsV1` of a value whose lists are owned as a whole."""
    return {f"f:{name}": fields_of(below) for name, below in value.items()} if isinstance(value, dict) else {}


def entry(fields: Json, manager: str = FIELD_MANAGER, operation: str = "Apply") -> Json:
    """An entry of `managedFields`."""
    return {"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": fields}


def with_managed_fields(manifest: Json) -> Json:
    """An object as an API server has it whose every field the operator has applied."""
    metadata = manifest["metadata"]
    applied = {name: metadata[name] for name in ("labels", "annotations") if name in metadata}
    rest = {name: value for name, value in manifest.items() if name not in ("apiVersion", "kind", "metadata")}
    fields = fields_of({"metadata": applied, **rest})
    return {**manifest, "metadata": {**metadata, "managedFields": [entry(fields)]}}
