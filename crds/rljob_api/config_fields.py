"""Fields of a config.json, each read as one kind of value or refused with a sentence that names it.

For `decoder_config` and `rope_config`. Pure. Knows no defaults: a field that is not there is null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def whole_number(fields: Mapping[str, Any], name: str, *, least: int = 1) -> int:
    """A whole number of at least `least`, which is 0 or 1."""
    value = fields.get(name)
    if type(value) is not int or value < least:
        raise misfit(name, value, f"a whole number {'above 0' if least else 'of at least 0'}")
    return value


def number(fields: Mapping[str, Any], name: str, *, may_be_zero: bool = False, purpose: str = "") -> int | float:
    """A finite number above 0, as it is written; `purpose` tells in the sentence what it is needed for."""
    value = fields.get(name)
    is_zero = may_be_zero and value == 0
    # Asked for what is right, since nothing is above or below NaN, which Python reads from JSON as a number.
    if isinstance(value, int | float) and not isinstance(value, bool) and (is_zero or 0 < value < math.inf):
        return value
    raise misfit(name, value, f"a number {'of at least 0' if may_be_zero else 'above 0'}{purpose}")


def flag(fields: Mapping[str, Any], name: str) -> bool:
    """True or false."""
    value = fields.get(name)
    if not isinstance(value, bool):
        raise misfit(name, value, "true or false")
    return value


def text(fields: Mapping[str, Any], name: str) -> str:
    """A text."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise misfit(name, value, "a text")
    return value


def mapping(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A JSON object; null is an empty one."""
    value = fields.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise misfit(name, value, "an object or null")
    return value


def misfit(name: str, value: object, wanted: str) -> ValueError:
    """What is raised for a field whose value is not `wanted`."""
    return ValueError(
        f"model.path: its config.json has {name} {value!r}, which must be {wanted}."
        " Give the config.json that belongs to the weights."
    )
