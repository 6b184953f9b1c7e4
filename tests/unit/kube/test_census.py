"""The census: what the watch of RLJobs has missed is found by a list."""

import asyncio
from typing import Any, cast

from rljob_operator.kube.api import Api
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.informer import Census
from rljob_operator.kube.kinds import RLJOBS
from rljob_operator.kube.views import JobKey
from tests.unit.kube.fake_api import ApiOfAnswers


def make_job(name: str, version: int, *, uid: str = "", namespace: str = "ns") -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {}, "status": {}}


def page(*jobs: dict[str, Any], token: str = "") -> dict[str, Any]:
    return {"metadata": {"continue": token}, "items": [{"metadata": job["metadata"]} for job in jobs]}


def count(cache: Cache, api: ApiOfAnswers, namespace: str | None = "ns") -> None:
    asyncio.run(Census(cast(Api, api), cache, namespace).count())


def known(cache: Cache) -> dict[str, int]:
    return {raw["metadata"]["name"]: int(raw["metadata"]["resourceVersion"]) for raw in cache.jobs()}


def test_what_was_missed_is_made_up_for_and_the_rest_is_not_read_again() -> None:
    woken: list[JobKey] = []
    cache = Cache(lambda key, cause: woken.append(key))
    for name in ("same", "deleted", "older", "newer"):
        cache.put_job(make_job(name, 5))
    woken.clear()
    listed = [make_job("same", 5), make_job("older", 9), make_job("newer", 4), make_job("missed", 7)]
    api = ApiOfAnswers(
        {
            RLJOBS.path("ns"): page(*listed[:2], token="more"),
            RLJOBS.path("ns") + "?more": page(*listed[2:]),
            RLJOBS.path("ns", "older"): make_job("older", 9),
            RLJOBS.path("ns", "missed"): make_job("missed", 7),
        }
    )
    count(cache, api)

    assert known(cache) == {"same": 5, "older": 9, "newer": 5, "missed": 7}
    assert {key.name for key in woken} == {"deleted", "older", "missed"}
    assert RLJOBS.path("ns", "same") not in api.asked


def test_a_job_that_comes_during_the_list_or_is_elsewhere_stays() -> None:
    cache = Cache(lambda key, cause: None)
    cache.put_job(make_job("elsewhere", 1, namespace="other"))
    cache.put_job(make_job("again", 1, uid="first"))

    def meanwhile(path: str) -> None:
        cache.put_job(make_job("young", 3))
        cache.put_job(make_job("again", 4, uid="second"))

    count(cache, ApiOfAnswers({RLJOBS.path("ns"): page()}, meanwhile))
    assert known(cache) == {"elsewhere": 1, "young": 3, "again": 4}
