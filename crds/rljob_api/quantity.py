"""Amounts of resources as Kubernetes writes them: a text such as "500m" or "8Gi", or a whole number.

Pure. A whole number that was given becomes its text, so that everybody who reads an amount reads a text.
"""

from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, StringConstraints, WithJsonSchema

QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$"
_LONGEST = 32

_FACTORS = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("", "k", "M", "G", "T", "P", "E"))},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate(("K", "M", "G", "T", "P", "E"), start=1)},
}
"""All suffixes that Kubernetes knows: a pod template may have any of them."""


def _as_text(given: Any) -> Any:  # noqa: ANN401 - whatever a manifest has
    """A whole number as its text; a truth value is none, though Python takes it for one."""
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else given


Quantity = Annotated[
    str,
    StringConstraints(pattern=QUANTITY, max_length=_LONGEST),
    BeforeValidator(_as_text),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": _LONGEST,
            "minimum": 0,
            "pattern": QUANTITY,
            "x-kubernetes-int-or-string": True,
        }
    ),
]
"""An amount: "500m", 2, "1.5Gi"."""


def value(amount: str | float) -> Decimal:
    """The number that an amount of Kubernetes stands for: cores, bytes, devices. ValueError where it is none."""
    text = str(amount)
    suffix = next((found for found in sorted(_FACTORS, key=len, reverse=True) if found and text.endswith(found)), "")
    try:
        number = Decimal(text.removesuffix(suffix)) * _FACTORS[suffix]
    except ArithmeticError:
        number = Decimal("NaN")
    if not number.is_finite():
        raise ValueError(f'{text!r} is no amount. Give one as Kubernetes writes it: "500m", 2, "8Gi".')
    return number


def written(number: Decimal) -> str:
    """A number as Kubernetes writes it: whole, or in thousandths, rounded up."""
    thousandths = int((number * 1000).to_integral_value(rounding="ROUND_CEILING"))
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)
