"""The bases of API models: camelCase outside, snake_case inside, frozen; and texts of bounded length.

The bases differ in how they treat unknown fields. Anyone may import it.
"""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field
from pydantic.alias_generators import to_camel


def cut(text: str, limit: int) -> str:
    """At most `limit` characters, of which the last three are dots where the text goes on."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def without_middle(text: str, limit: int, hint: str = "") -> str:
    """A text of more than `limit` characters without those in its middle, and how many they are; `hint` says more."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out{hint}]\n{text[-half:]}"


OPEN = Field(union_mode="left_to_right")
"""For a field `Annotated[SomeEnum | str, OPEN]`: a value of another version that the enum lacks stays a string."""


MOST_CHARACTERS = 8192


BoundedText = Annotated[str, AfterValidator(lambda text: cut(text, MOST_CHARACTERS))]
"""A text for people, written by another process; validation cuts it to MOST_CHARACTERS."""


MOST_NAMES = 1000


def _counted(value: object) -> object:
    if isinstance(value, dict) and len(value) > MOST_NAMES:
        raise ValueError(f"{len(value)} names, at most {MOST_NAMES} are taken")
    return value


FEW_NAMES = BeforeValidator(_counted)
"""For a map in a message whose names are roles, tasks or metrics: it is refused before any entry is validated."""


ONE_PROBLEM = FailFast()
"""For a list in a message: validation stops at its first wrong entry, so that a hundred thousand wrong ones do not make
a hundred thousand sentences."""


class ApiModel(BaseModel):
    """A value that a user wrote: unknown fields are refused. Dump with `by_alias=True` (the default here) for YAML."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
    )


class StatusModel(ApiModel):
    """A part of the status. Another version of the operator may have written it: unknown fields are retained."""

    model_config = ConfigDict(extra="allow")


class WireModel(ApiModel):
    """A message between processes of which each may be of another version: unknown fields are dropped."""

    model_config = ConfigDict(extra="ignore")
