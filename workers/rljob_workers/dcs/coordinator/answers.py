"""What the coordinator's routes have in common: how long a question may wait, and how an answer is written."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from rljob_api.base import ApiModel

LONGEST_WAIT_SECONDS = 30.0

Wait = Annotated[float, Query(ge=0, le=LONGEST_WAIT_SECONDS)]


def as_json(model: ApiModel | None) -> Response:
    """The whole answer; null where there is nothing to say."""
    body = "null" if model is None else model.model_dump_json()
    return Response(body, media_type="application/json")
