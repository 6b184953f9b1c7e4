"""What `init` takes, and the sentence for what it does not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rljob_transfer_queue.samplers import (
    BaseSampler,
    GRPOGroupNSampler,
    Question,
    RankAwareSampler,
    SeqlenBalancedSampler,
    SequentialSampler,
)
from rljob_transfer_queue.settings import (
    Servers,
    Settings,
    expected_rows,
    find_servers,
    read_settings,
    wait_seconds,
)

URLS = {"control_redis": "redis://a:1/0", "storage_units": ["redis://b:2/0"]}


class MySampler(BaseSampler):
    pass


@pytest.mark.parametrize(
    "sampler",
    [SequentialSampler(), RankAwareSampler(), GRPOGroupNSampler(4), SeqlenBalancedSampler(4, 2)],
    ids=lambda sampler: sampler.name,
)
def test_settings_come_back(sampler: BaseSampler) -> None:
    dumped = Settings(sampler, polling=True).dump()
    assert Settings.load(dumped).dump() == dumped


@pytest.mark.parametrize(
    "given", ["RankAwareSampler", RankAwareSampler, RankAwareSampler()], ids=["name", "class", "object"]
)
def test_a_sampler_is_named_in_three_ways(given: Any) -> None:
    settings = read_settings({**URLS, "controller": {"sampler": given, "polling_mode": True, "zmq_info": None}})
    assert settings is not None
    assert isinstance(settings.sampler, RankAwareSampler)
    assert settings.polling


def test_nothing_stated_takes_what_is_in_force() -> None:
    assert read_settings(None) is None
    assert read_settings({**URLS, "backend": {"SimpleStorage": {"num_data_storage_units": 2}}}) is None


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"control": "x"}, "control is no setting of this queue. Known are backend, control_redis"),
        ({"controller": {"threads": 2}}, "controller.threads is no setting of this queue"),
        ({"controller": {"polling_mode": "yes"}}, "controller.polling_mode is 'yes'. Use True or False"),
        ({"controller": {"sampler": "Mine"}}, "Mine is a sampler of your own"),
        ({"controller": {"sampler": MySampler()}}, "is a sampler of your own, which would have to run inside"),
        ({"backend": {"storage_backend": "MooncakeStore"}}, "storage_backend MooncakeStore is not there"),
        ({"backend": {"SimpleStorage": {"ssd_offload": {"enabled": True}}}}, "ssd_offload is not there"),
        ({"metrics": {"enabled": True}}, "metrics.enabled is not there"),
    ],
)
def test_what_is_not_there_is_refused(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read_settings(config)


def test_servers_come_from_the_configuration_or_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    path.write_text(json.dumps({"controlRedis": "redis://c:3/0", "storageUnits": ["unix:///d"], "job": "other"}))
    environ = {"RLJOB_ENDPOINTS": str(path)}
    assert find_servers(URLS, environ) == Servers("redis://a:1/0", ("redis://b:2/0",))
    assert find_servers({"controller": {}}, environ) == Servers("redis://c:3/0", ("unix:///d",))


@pytest.mark.parametrize(
    ("config", "text", "sentence"),
    [
        (None, None, "no servers are named. Pass control_redis and storage_units"),
        ({"control_redis": "redis://a:1/0"}, None, "the second is None. Give a list of URLs"),
        ({"control_redis": 7, "storage_units": ["x"]}, None, "the first is 7. Give the URL of a Redis"),
        ({**URLS, "storage_units": "redis://b:2/0"}, None, "the second is 'redis://b:2/0'. Give a list of URLs"),
        (None, "[]", "holds no JSON object with controlRedis and storageUnits"),
        (None, "{", "cannot be read as JSON"),
        (None, "{}", "the first is None"),
    ],
)
def test_servers_that_are_not_named_are_asked_for(
    tmp_path: Path, config: dict[str, Any] | None, text: str | None, sentence: str
) -> None:
    environ = {}
    if text is not None:
        (tmp_path / "endpoints.json").write_text(text)
        environ["RLJOB_ENDPOINTS"] = str(tmp_path / "endpoints.json")
    with pytest.raises(ValueError, match=re.escape(sentence)):
        find_servers(config, environ)


def test_numbers_from_the_environment() -> None:
    assert (expected_rows({}), expected_rows({"TQ_PRE_ALLOC_SAMPLE_NUM": "64"})) == (0, 64)
    assert (wait_seconds({}), wait_seconds({"TQ_CONTROLLER_GET_METADATA_TIMEOUT": "2"})) == (5.0, 2.0)
    with pytest.raises(ValueError, match="TQ_PRE_ALLOC_SAMPLE_NUM: 'many' is no number of rows"):
        expected_rows({"TQ_PRE_ALLOC_SAMPLE_NUM": "many"})
    with pytest.raises(ValueError, match="TQ_CONTROLLER_GET_METADATA_TIMEOUT: 'long' is no number of seconds"):
        wait_seconds({"TQ_CONTROLLER_GET_METADATA_TIMEOUT": "long"})


@pytest.mark.parametrize(
    ("sampler", "config", "question"),
    [
        (SequentialSampler(), {"dp_rank": 1}, Question()),
        (RankAwareSampler(), {"dp_rank": 1, "batch_index": 2}, Question(1, 1, 2)),
        (GRPOGroupNSampler(4), {}, Question(4)),
        (GRPOGroupNSampler(4), {"dp_rank": 0}, Question(4, 0, 0)),
        (SeqlenBalancedSampler(4, 2), {"dp_rank": 1, "batch_index": 3}, Question(4, 1, 3, 2)),
    ],
    ids=["rows", "ranks", "groups", "groups of a rank", "balanced"],
)
def test_what_a_sampler_asks(sampler: BaseSampler, config: dict[str, Any], question: Question) -> None:
    assert sampler.question(config) == question


def test_a_rank_beyond_the_balanced_ones_is_refused() -> None:
    with pytest.raises(ValueError, match="dp_rank 2 is not below dp_size 2"):
        SeqlenBalancedSampler(4, 2).question({"dp_rank": 2})
    with pytest.raises(ValueError, match="n_samples_per_prompt: 0 must be positive"):
        GRPOGroupNSampler(0)
