"""Options are rehearsed before a replica is ready: only the API server's own refusal counts, and it is waited for."""

import asyncio
from typing import Any, cast

import pytest

from rljob_operator.build import Platform
from rljob_operator.kube import capabilities
from rljob_operator.kube.api import Api, Json
from rljob_operator.kube.capabilities import rehearse
from rljob_operator.kube.errors import ApiUnreachable, refusal
from rljob_operator.kube.kinds import Resource
from rljob_operator.options import OperatorOptions, OptionsRefused


class Server:
    """Answers a dry run of a Deployment with these, one after the other, and takes everything else."""

    def __init__(self, *answers: Exception) -> None:
        self._answers = list(answers)
        self.rehearsed: list[str] = []

    async def rehearse(self, resource: Resource, namespace: str, body: Json) -> None:
        self.rehearsed.append(body["kind"])
        if body["kind"] == "Deployment" and self._answers:
            raise self._answers.pop(0)


def rehearsed(server: Server) -> None:
    platform = Platform(pod_monitors=False, pod_groups=False)
    asyncio.run(rehearse(cast(Api, cast(Any, server)), OperatorOptions(), platform, "rljob"))


def test_what_the_api_server_itself_refuses_names_the_object_and_the_options() -> None:
    server = Server(refusal("rehearse", 422, "Invalid", "spec.x:\n  no such field."))
    with pytest.raises(OptionsRefused) as refused:
        rehearsed(server)
    expected = (
        r"^workloads: the API server refuses the Deployment [a-z-]+ that is made by them: spec\.x: no such field\. "
    )
    refused.match(expected + r"Mend the option\.$")


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(refusal("rehearse", 400, "Bad", 'admission webhook "a" denied the request'), id="a webhook"),
        pytest.param(refusal("rehearse", 422, "Invalid", "ValidatingAdmissionPolicy 'p' denied"), id="a policy"),
        pytest.param(refusal("rehearse", 403, "Forbidden", "exceeded quota"), id="a quota"),
    ],
)
def test_a_refusal_that_comes_and_goes_is_ignored(error: Exception) -> None:
    rehearsed(Server(error))


def test_a_server_without_an_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "REHEARSAL_RETRY_SECONDS", 0.0)
    answered, silent = Server(), Server(ApiUnreachable("no answer"), ApiUnreachable("no answer"))
    rehearsed(answered)
    rehearsed(silent)
    assert len(silent.rehearsed) == len(answered.rehearsed) + 2
