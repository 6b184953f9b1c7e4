"""The plan of a run as text: a table of processes, one of devices, the settings, and what was assumed.

Pure, but for the width of the terminal. For `rljob run --dry-run`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rljob_api.machine.memory import WITHIN
from rljob_api.rank_places import RankPlace
from rljob_cli.jobs.run_plan import PipelineBubbles, PlannedDevice, PlannedProcess, RunPlan
from rljob_cli.ui.tables import drawn, size_text, table

if TYPE_CHECKING:
    from rich.table import Table


_SHOWN_ONCE = ("rank", "world")
"""Settings that are another for each rank: the table of processes has them."""


def plan_text(plan: RunPlan) -> str:
    """All of it."""
    used = sum(device.name != "CPU" for device in plan.devices)
    parts = [
        f"{plan.job}: {len(plan.processes)} processes in {plan.num_pods} pods;"
        f" {used} of {plan.num_devices} devices by {plan.source}",
        "",
        drawn(_process_table(plan.processes)),
        "",
        drawn(_device_table(plan.devices)),
        "",
        *_settings(plan.processes),
        "",
        *_waits(plan.bubbles),
        f"Rows are taken to have up to {plan.rows.row} tokens: {plan.rows.prompt} of a prompt"
        f" ({plan.rows.prompt_source}) and {plan.rows.response} of a response.",
        f"Memory is by formula, within a factor of {WITHIN:g} of what was measured on the CPU; CUDA's own (some hundred"
        " MiB of each device) comes on top."
        + (f" It is not measured for {_laid_out(plan.processes)}." if _laid_out(plan.processes) else ""),
        *_warnings(plan.devices),
    ]
    return "\n".join(parts)


def _process_table(processes: Sequence[PlannedProcess]) -> Table:
    has_places = any(process.place for process in processes)
    places = ("dp tp pp cp ep",) if has_places else ()
    made = table(
        *("process", "devices", "rank:", *places),
        *("weights:", "gradients:", "optimizer:", "copies:", "activations:", "together:"),
    )
    for process in processes:
        rank = f"{process.settings['rank']}/{process.settings['world']}" if "rank" in process.settings else ""
        place = (_numbers(process.place),) if has_places else ()
        sizes = () if process.memory is None else process.memory.by_part.values()
        made.add_row(process.name, ",".join(process.devices) or "CPU", rank, *place, *map(_size, sizes))
    return made


def _numbers(place: RankPlace | None) -> str:
    """Below the letters of data, tensor, pipeline, context and expert parallelism."""
    if place is None:
        return ""
    return " ".join(
        f"{number:2d}" for number in (place.data, place.tensor, place.pipeline, place.context, place.expert)
    )


def _laid_out(processes: Iterable[PlannedProcess]) -> str:
    """The roles whose ranks share models."""
    return " and ".join(dict.fromkeys(one.pod.rpartition("-")[0] for one in processes if one.place is not None))


def _waits(bubbles: Iterable[PipelineBubbles]) -> Iterator[str]:
    for one in bubbles:
        idle = one.parallelism.pipeline - 1
        yield (
            f"{one.role}: stages wait for {one.share:.1%} of a slice's time, {idle} / ({idle} +"
            f" {one.parallelism.virtual_pipeline} x {one.micro_batches} micro-batches). More micro-batches, or"
            " virtualPipeline, make it less."
        )


def _device_table(devices: Iterable[PlannedDevice]) -> Table:
    made = table("device", "memory:", "needed:", "left:", "for KV:", "processes")
    for device in devices:
        kv = "" if device.kv_tokens is None else f"{_count(device.kv_tokens)} tokens"
        sizes = (_size(device.memory_bytes), _size(device.needed_bytes), _size(device.left_bytes))
        made.add_row("host" if device.name == "CPU" else device.name, *sizes, kv, ", ".join(device.processes))
    return made


def _settings(processes: Iterable[PlannedProcess]) -> Iterator[str]:
    """A line for each kind of process: those of a role differ in their rank alone."""
    shown: dict[str, str] = {}
    for process in processes:
        kind = process.pod.rpartition("-")[0] + (".engine" if ".engine" in process.name else "")
        settings = (f"{name} {_value(value)}" for name, value in process.settings.items() if name not in _SHOWN_ONCE)
        shown.setdefault(kind, ", ".join(settings))
    width = max(map(len, shown))
    yield from (f"{kind:<{width}}  {settings}" for kind, settings in shown.items())


def _warnings(devices: Iterable[PlannedDevice]) -> Iterator[str]:
    for device in devices:
        if device.left_bytes is not None and device.left_bytes < 0:
            yield (
                f"{device.name}: {_size(device.needed_bytes)} are needed and it has {_size(device.memory_bytes)}. Give"
                " the actor more gpus, give roles that share it devices of their own, or lower training.microBatchSize"
                " or maxTokensPerMicroBatch."
            )


def _value(value: Any) -> str:  # noqa: ANN401 - of a setting
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _count(number: int) -> str:
    if number < 10_000:
        return str(number)
    return f"{number / 1000:.0f}k" if number < 10_000_000 else f"{number / 1_000_000:.1f}M"


def _size(size: int | None) -> str:
    if size is None:
        return ""
    return size_text(size) if size else "-"
