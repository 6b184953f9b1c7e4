"""Checks of the sets of an evaluation (`spec.evaluation.sets`): their files, and prompts that leave no room.

A set has each of its prompts, so that one that fills the model's positions ends the job. Prompts that are that long are
rare: they are counted by the job's tokenizer, in a process of its own, where bytes do not rule them out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api.model_files.hub_names import is_hub_name
from rljob_api.spec.set_defaults import stated_data
from rljob_cli.checks.findings import Finding, Level, problem, unchecked
from rljob_cli.checks.prompts import conversation_text, positions_of, prompt_findings, prompts_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rljob_api.spec import RLJobSpec
    from rljob_api.spec.data import DataSpec

_LONGEST_SECONDS = 300
"""For the process, imports included, on a machine that has much else to do."""

_TEMPLATE_BYTES, _MESSAGE_BYTES = 1024, 256
"""Bytes that a chat template adds at most, once and for each message, but for templates that say much themselves."""

_MODEL, _LONG_PROMPTS = "spec.model", "spec.rollout.longPrompts"


def evaluation_findings(spec: RLJobSpec, *, is_elsewhere: bool, refused: Collection[str] = ()) -> Iterator[Finding]:
    """Findings about sets of a job with absolute paths. `refused`: paths of refused fields."""
    if spec.evaluation is None:
        return
    readable = []
    for place, each in enumerate(spec.evaluation.sets):
        found = list(_file_findings(spec, place, is_elsewhere=is_elsewhere, refused=refused))
        yield from found
        files = stated_data(each.data).files
        is_sound = all(one.level is Level.WARNING for one in found)
        if is_sound and files and not any(is_hub_name(file.path) for file in files):
            readable.append(place)
    if not refused:
        yield from _length_findings(spec, readable)


def _file_findings(spec: RLJobSpec, place: int, *, is_elsewhere: bool, refused: Collection[str]) -> Iterator[Finding]:
    """As `prompt_findings` has it of the job's own, but for long prompts: what becomes of them is about training."""
    assert spec.evaluation is not None
    each = spec.evaluation.sets[place]
    of_set = spec.model_copy(update={"data": stated_data(each.data)})
    for finding in prompt_findings(of_set, is_elsewhere=is_elsewhere, refused=refused):
        if _LONG_PROMPTS in finding.uses:
            continue
        text = finding.text.replace("spec.data.", f"spec.evaluation.sets[{place}].data.")
        if finding.level is Level.WARNING:
            field, _, sentence = text.partition(": ")
            text = f"{field}: set {each.name}: {sentence}"
        yield replace(finding, text=text)


def _length_findings(spec: RLJobSpec, places: list[int]) -> Iterator[Finding]:
    """Findings about sets whose files are here and sound; none where the tokenizer is not here."""
    positions, folder = positions_of(spec), spec.model.tokenizer_path or spec.model.path
    if positions is None or (folder is not None and not Path(folder).is_dir()) or find_spec("transformers") is None:
        return
    assert spec.evaluation is not None
    sets = [place for place in places if most_tokens(stated_data(spec.evaluation.sets[place].data)) >= positions]
    if sets:
        yield from _counted(spec, sets, positions)


def most_tokens(data: DataSpec) -> int:
    """Tokens of the longest prompt of files that were checked before, at a token for each byte."""
    return max(_bytes_of(prompt, data) for file in data.files for prompt in prompts_of(file))


def _bytes_of(prompt: Any, data: DataSpec) -> int:  # noqa: ANN401 - JSON
    text = len(conversation_text(prompt).encode(errors="surrogatepass"))
    messages = len(prompt) if isinstance(prompt, list) else int(data.apply_chat_template)
    if not messages:
        return text
    tools = [] if data.chat_template is None else data.chat_template.tools
    given = (data.system_prompt or "") + json.dumps(tools)
    return text + len(given.encode()) + _TEMPLATE_BYTES + _MESSAGE_BYTES * (messages + 1)


def _counted(spec: RLJobSpec, sets: list[int], positions: int) -> Iterator[Finding]:
    asked = json.dumps({"spec": spec.model_dump(mode="json"), "sets": sets, "positions": positions})
    command = [sys.executable, "-m", "rljob_workers.data.room"]
    try:
        done = subprocess.run(command, input=asked.encode(), capture_output=True, timeout=_LONGEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield unchecked(f"spec.evaluation.sets: their prompts were not counted within {_LONGEST_SECONDS} s.")
        return
    if done.returncode:  # a tokenizer that cannot be opened has a finding of its own
        return
    for text in json.loads(done.stdout)["problems"]:
        yield problem(f"spec.{text}", _MODEL, "spec.roles.rollout", "spec.evaluation.sets")
