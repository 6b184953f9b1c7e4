"""The bases of API models: camelCase outside, snake_case inside, frozen. They differ in what unknown fields come to."""

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

OPEN = Field(union_mode="left_to_right")
"""For a field `Annotated[SomeEnum | str, OPEN]`: a word of another version that the enum lacks stays a word."""


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
    """A part of the status. Another version of the operator may have written it: what is not known here is kept."""

    model_config = ConfigDict(extra="allow")


class WireModel(ApiModel):
    """A message between processes of which each may be of another version: what is not known here is left out."""

    model_config = ConfigDict(extra="ignore")
