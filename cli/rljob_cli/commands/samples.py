"""`rljob samples`: prints generated samples of a run: a page or a table line for each, or JSON.

Reads the run folder through `jobs.sample_log`. Control characters of a model's text are escaped, since a terminal
would obey them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import click

from rljob_api.base import without_middle
from rljob_api.generations import FILE, FILES
from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_cli.jobs.sample_log import RetainedSample, SampleFilter, read_generations, rollouts_of
from rljob_cli.ui.tables import drawn, table

CUT_CHARACTERS = 40
"""Longest text in a table."""


def pages_text(lines: Sequence[RetainedSample], max_characters: int | None) -> str:
    """A page for each sample; texts longer than `max_characters` are without their middle."""
    return "\n\n".join("\n".join([_headline(line), *_texts(line, max_characters)]) for line in lines)


def table_text(lines: Sequence[RetainedSample]) -> str:
    """A line for each sample."""
    from rich.text import Text

    columns = ["rollout:", "group:", "sample:", "reward:", "advantage:", "finish", "tokens", "made by"]
    more = [(name, text) for name, text in (("parts", _parts), ("label", _label)) if any(map(text, lines))]
    made = table(*columns, *(name for name, _ in more), "prompt", "response")
    for line in lines:
        place = [str(line[key]) for key in ("rollout", "group", "index")]
        worth = [f"{line['reward']:g}", f"{line['advantage']:+.3g}"] if line["valid"] else ["-", "-"]
        texts = [_cut(harmless(line[key])) for key in ("prompt", "response")]
        facts = [
            *place,
            *worth,
            line["finishReason"],
            _tokens(line),
            _versions(line),
            *(_cut(text(line)) for _, text in more),
            *texts,
        ]
        made.add_row(*map(Text, facts))  # not as markup, which brackets in a text would be
    return drawn(made)


def _headline(line: RetainedSample) -> str:
    worth = [f"reward {line['reward']:g}", f"advantage {line['advantage']:+.3g}"] if line["valid"] else ["not scored"]
    tokens = f"{line['promptTokens']} + {_tokens(line)} tokens"
    facts = [_place(line), *worth, _finish(line), tokens, f"made by {_versions(line)}", *_draws(line)]
    return f"== {' | '.join(facts)}"


def _draws(line: RetainedSample) -> list[str]:
    """Lines about its group, where the filter of rollout.dynamicSampling has refused any."""
    if line.get("lastDrawRefused"):
        return [f"all {line['draws']} draws refused"]
    return [f"draw {line['draws']} of its group"] if line.get("draws", 1) > 1 else []


def _place(line: RetainedSample) -> str:
    return f"rollout {line['rollout']} group {line['group']} sample {line['index']}"


def _finish(line: RetainedSample) -> str:
    reason: str = line["finishReason"]
    return {"stop": "stopped", "length": "cut off", "abort": "aborted"}.get(reason, reason)


def _versions(line: RetainedSample) -> str:
    """Versions in the order of the tokens, with how many each has drawn where there are several."""
    counts: list[tuple[int, int]] = []
    for span in line["versions"]:
        version, count = span["version"], span["end"] - span["start"]
        if counts and counts[-1][0] == version:  # a tool wrote between two runs of one version
            counts[-1] = (version, counts[-1][1] + count)
        else:
            counts.append((version, count))
    if len(counts) == 1:
        return f"v{counts[0][0]}"
    return ", ".join(f"v{version} ({count})" for version, count in counts) or "-"


def _turns(line: RetainedSample) -> list[dict[str, Any]]:
    """Turns of a response that tools wrote into; another one has none."""
    turns: list[dict[str, Any]] = line.get("turns", [])
    return turns


def _tokens(line: RetainedSample) -> str:
    """Tokens of the response, and how many of them a tool wrote."""
    of_tools = sum(turn["end"] - turn["start"] for turn in _turns(line) if turn["by"] == "tool")
    return f"{line['responseTokens']}" + (f" ({of_tools} of tools)" if of_tools else "")


def _parts(line: RetainedSample) -> str:
    """Measurements of its rewards, by name; empty where the reward is a single number."""
    parts: dict[str, float | None] = line.get("rewardParts", {})
    return ", ".join(f"{name} {'-' if value is None else f'{value:g}'}" for name, value in parts.items())


def _label(line: RetainedSample) -> str:
    return harmless(line.get("label", ""))


def _texts(line: RetainedSample, max_characters: int | None) -> list[str]:
    parts = [("prompt", line["prompt"])]
    parts += [(turn["by"], turn["text"]) for turn in _turns(line)] or [("response", line["response"])]
    parts += [(name, text) for name, text in (("label", line.get("label", "")), ("rewards", _parts(line))) if text]
    return [f"{name:10}{_indented(_shown(text, max_characters))}" for name, text in parts]


def _indented(text: str) -> str:
    return text.replace("\n", "\n          ")


def _shown(text: str, limit: int | None) -> str:
    whole = harmless(text)
    return whole if limit is None else without_middle(whole, limit, ", see --full")


def harmless(text: str) -> str:
    """Control characters as escapes, but for line breaks and tabs."""
    return "".join(char if char in "\n\t" or char.isprintable() else repr(char)[1:-1] for char in text)


def _cut(text: str) -> str:
    flat = text.replace("\n", "\\n").replace("\t", "\\t")
    return flat if len(flat) <= CUT_CHARACTERS else f"{flat[: CUT_CHARACTERS // 2]}...{flat[-CUT_CHARACTERS // 2 :]}"


MAX_CHARACTERS = 1200
"""Longest prompt or response on a page, without --full."""


_EPILOG = """\b
What to look at first:
  rljob samples rljob-out/job                     the newest rollout: is it the task that you meant?
  rljob samples rljob-out/job --rollout 0         what the model did before training
  rljob samples rljob-out/job --rollout all --min-reward 1 --limit 5     is a full reward deserved?
  rljob samples rljob-out/job --rollout all --max-reward 0 --limit 5     is none?
  rljob samples rljob-out/job --rollout all --finish length              what did not come to its end
  rljob samples rljob-out/job --rollout all --unscored                   where the reward has failed
  rljob samples rljob-out/job --rollout 0..50 --output table             many at a glance

\b
Prompts and responses are shown as the model has them, special tokens included: a chat template that is there twice, or
not at all, is seen here. `made by` are the versions of the weights that made the tokens. A response that tools wrote
into is shown by turns, `model` and `tool`; in JSON they are `turns`, with their places in the response's tokens.

\b
Exit codes: 0 shown, also where nothing matches; 64 the folder has no samples, or the question is wrong."""


@click.command(epilog=_EPILOG)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--rollout", default="last", help="`last` (the default), `all`, a number, or a range such as 10..20.")
@click.option("--min-reward", type=float, help="Only samples with at least this reward.")
@click.option("--max-reward", type=float, help="Only samples with at most this reward.")
@click.option("--finish", type=click.Choice(["stop", "length", "abort"]), help="Only samples that ended like this.")
@click.option("--unscored", is_flag=True, help="Only samples that the reward could not score.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Show at most so many.")
@click.option("--full", is_flag=True, help="Whole texts: a page leaves out the middle of long ones.")
@click.option(
    "--output",
    type=click.Choice(["pages", "table", "json"]),
    default="pages",
    help="A page for each (the default), a line for each, or JSON for programs.",
)
def samples(
    folder: Path,
    rollout: str,
    min_reward: float | None,
    max_reward: float | None,
    finish: str | None,
    limit: int,
    output: Literal["pages", "table", "json"],
    *,
    unscored: bool,
    full: bool,
) -> None:
    """Show what was generated in the run in FOLDER: prompt, response, label, rewards, and who made it.

    Of each trained rollout telemetry.generationsPerRollout samples are kept (8), spread over it whatever they are
    worth. A job that runs can be looked at, too.
    """
    lines = read_generations(folder) if folder.is_dir() else []
    if not lines:
        _refuse(_missing(folder))
    choice = SampleFilter(_rollouts(rollout, lines), min_reward, max_reward, finish, valid=False if unscored else None)
    found = [line for line in lines if choice.takes(line)]
    shown = found[:limit]
    if output == "json":
        click.echo(json.dumps({"matching": len(found), "samples": shown}, ensure_ascii=False))
        return
    if shown:
        click.echo(table_text(shown) if output == "table" else pages_text(shown, None if full else MAX_CHARACTERS))
        click.echo()
    click.echo(_summary(lines, len(found), len(shown)))


def _rollouts(wanted: str, lines: list[RetainedSample]) -> range | None:
    if wanted == "all":
        return None
    if wanted == "last":
        last = rollouts_of(lines)[-1]
        return range(last, last + 1)
    bounds = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", wanted)
    if bounds is None:
        _refuse(f"--rollout: {wanted!r} is none. Give `last`, `all`, a number, or a range such as 10..20.")
    first = int(bounds[1])
    return range(first, int(bounds[2] or first) + 1)


def _summary(lines: list[RetainedSample], num_found: int, num_shown: int) -> str:
    rollouts = rollouts_of(lines)
    retained = f"{len(lines)} samples are kept, of rollouts {rollouts[0]} to {rollouts[-1]}"
    more = f"; {num_shown} are shown (--limit)" if num_shown < num_found else ""
    return f"{num_found} match{more}. {retained}."


def _missing(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is not a folder. Give the folder of a run (its --out, by default rljob-out/NAME)."
    if any((folder / name).exists() for name in FILES):
        return (
            f"{folder} has no sample yet: the first rollout is not trained. Ask again, or look at `rljob queue stats`."
        )
    return (
        f"{folder} has no {FILE}: nothing is trained yet, telemetry.generationsPerRollout is 0, or it is not the"
        " folder of a run (its --out, by default rljob-out/NAME)."
    )


def _refuse(sentence: str) -> NoReturn:
    click.echo(sentence, err=True)
    raise click.exceptions.Exit(EXIT_BAD_MANIFEST)
