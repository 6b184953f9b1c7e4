"""A job whose samples a function makes: two turns with a pretended tool between them, killed and updated within it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rljob_cli.main import cli
from rljob_workers.models.building import described_config, initial_state
from rljob_workers.models.tokenizers import build_tokenizer

from .job import RunningJob, kill, make_manifest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "calculator"

TOLERANCE = {"Torch": 1e-4, "SGLang": 1e-4}
"""Of a log-prob in float32, as `verification.BOUNDS`."""

FUNCTION = """
import asyncio, json
from dataclasses import replace
from pathlib import Path

FOLDER = Path(__file__).parent

async def two_turns(prompt, engine, params, *, tool_seconds):
    conversation = engine.begin(prompt.token_ids)
    conversation.add_turn(await engine.generate(conversation.token_ids, replace(params, max_new_tokens=2)))
    mark = FOLDER / "in_tool"
    if not mark.exists():
        mark.touch()
        await asyncio.sleep(1e6)  # until this rank is killed
    await asyncio.sleep(tool_seconds)
    conversation.add_tokens(engine.encode("=7="))
    conversation.add_turn(await engine.generate(conversation.token_ids))
    made = conversation.finish(metrics={"tool/calls": 1.0})
    line = {
        "tokens": list(made.token_ids), "prompt": made.prompt_length, "mask": list(made.loss_mask),
        "log_probs": list(made.log_probs), "spans": [[s.weight.version, s.start, s.end] for s in made.version_spans],
    }
    with (FOLDER / "made.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\\n")
    return made
"""


def manifest(folder: Path, kind: str) -> dict[str, Any]:
    """Every sample is logged; the rank of the rollout is restarted alone."""
    (folder / "play.py").write_text(FUNCTION)
    function = {"function": "play:two_turns", "path": str(folder), "arguments": {"tool_seconds": 0.3}}
    made = make_manifest(
        folder,
        rollout={"numRollouts": 8, "sampling": {"maxNewTokens": 8}, "function": function},
        roles={"rollout": {"engine": {"kind": kind}}},
        restartPolicy={"table": {"rollout": "InPlace"}, "threshold": 100, "stallTimeoutSeconds": 120},
        telemetry={"sampleLog": True, "generationsPerRollout": 32},
    )
    made["spec"]["training"]["optimizer"]["learningRate"] = 1e-2
    return made


@pytest.mark.parametrize("kind", ["Torch", pytest.param("SGLang", marks=pytest.mark.long)])
def test_two_turns_with_a_tool_are_trained_whatever_dies_within_it(tmp_path: Path, kind: str) -> None:
    with RunningJob(tmp_path, manifest(tmp_path, kind)) as job:
        job.wait_for("a sample in its tool", (tmp_path / "in_tool").exists)
        kill(job.rank_pid("rollout"))
        report = job.assert_succeeded()
        assert (report.epochs, report.lines) == (1, 8 * 32)
        assert {event["role"] for event in job.events() if event["reason"] == "RankExited"} == {"rollout"}
        samples = shown(job.out)
        metrics = job.metrics()
    assert len(samples) == 8 * 32
    gap = {(turn["by"], turn["end"] - turn["start"], turn["text"]) for one in samples for turn in one["turns"][1:2]}
    assert gap == {("tool", 3, "=7=")}
    assert all([turn["by"] for turn in one["turns"]] == ["model", "tool", "model"] for one in samples)
    assert all(drawn(one["versions"]) == of_model(one["turns"]) for one in samples), "spans have gaps where tools wrote"
    assert any(len({span["version"] for span in one["versions"]}) > 1 for one in samples), "none saw an update"
    assert all(line["rollout/tool/calls"] == 1.0 for line in metrics)
    assert all(line["samples/drawn_share"] < 1.0 for line in metrics)

    worst, count = worst_difference(job, tmp_path / "made.jsonl")
    print(f"{kind}: {count} log-probs of version 0 differ from transformers' by {worst:.1e} at most")  # noqa: T201 - -s
    assert count > 0
    assert worst < TOLERANCE[kind]


def test_the_example_is_trained_and_shown_by_turns(tmp_path: Path) -> None:
    made = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    spec = made["spec"]
    spec["data"]["prompts"] = str(EXAMPLE / spec["data"]["prompts"])
    spec["rollout"] |= {"numRollouts": 3, "batchSize": 4, "samplesPerPrompt": 4}
    spec["rollout"]["function"]["path"] = str(EXAMPLE)
    spec["training"] |= {"globalBatchSize": 16, "microBatchSize": 16}
    spec["telemetry"] = {"sampleLog": True}
    with RunningJob(tmp_path, made) as job:
        job.assert_succeeded()
        assert all([turn["by"] for turn in one["turns"]] == ["model", "tool", "model"] for one in shown(job.out))


def shown(out: Path) -> list[dict[str, Any]]:
    """What `rljob samples` prints."""
    result = CliRunner().invoke(cli, ["samples", str(out), "--rollout", "all", "--limit", "1000", "--output", "json"])
    assert result.exit_code == 0, result.output
    samples: list[dict[str, Any]] = json.loads(result.output)["samples"]
    return samples


def drawn(spans: list[dict[str, Any]]) -> list[int]:
    return [place for span in spans for place in range(span["start"], span["end"])]


def of_model(turns: list[dict[str, Any]]) -> list[int]:
    return [place for turn in turns if turn["by"] == "model" for place in range(turn["start"], turn["end"])]


def worst_difference(job: RunningJob, made: Path) -> tuple[float, int]:
    """Of the engine's log-probs of samples that version 0 made, from those of transformers; and their number."""
    model = first_model(job)
    differences = [
        abs(engine - float(own))
        for line in map(json.loads, made.read_text().splitlines())
        if {version for version, _, _ in line["spans"]} == {0}
        for engine, own in zip(line["log_probs"], log_probs(model, line), strict=True)
    ]
    return max(differences, default=0.0), len(differences)


def first_model(job: RunningJob) -> PreTrainedModel:
    spec = job.manifest.spec.model
    tokenizer = build_tokenizer(spec)
    auto: Any = AutoModelForCausalLM
    described = described_config(spec, tokenizer)
    model: PreTrainedModel = auto.from_config(AutoConfig.for_model(**described)).float()
    missing, unexpected = model.load_state_dict(initial_state(spec, tokenizer), strict=False)
    assert (set(missing) <= {"lm_head.weight"}, unexpected) == (True, [])
    model.train(mode=False)
    return model


@torch.no_grad()
def log_probs(model: PreTrainedModel, line: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Of the tokens that the model drew, each given all before it, a tool's included."""
    tokens = torch.tensor([line["tokens"]])
    of_all = model(tokens).logits[0].log_softmax(-1)
    for place, is_drawn in enumerate(line["mask"], start=line["prompt"]):
        if is_drawn:
            yield of_all[place - 1, tokens[0, place]]
