"""TensorBoard: event files in the run folder, written by its own package. No network.

Steps that come again replace the earlier ones: a session start at a step has TensorBoard forget what it has of that
step and later ones. Evaluations, by version, and events and configuration lie in folders of their own, where no
restart of the steps takes them back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from rljob_workers.telemetry.trackers.base import Line, TrackedRun, Tracker

_VERSION = "brain.Event:2"
"""Version of files in which session starts count."""


class EventFile:
    """One more file of a folder: TensorBoard reads them in the order of their names."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in folder.glob("events.out.tfevents.*"))
        path = folder / f"events.out.tfevents.{int(time.time()):010d}.rljob.{number:06d}"
        self._file = path.open("xb")
        self._records = RecordWriter(self._file)
        self._write(Event(file_version=_VERSION))

    def begin_at(self, step: int) -> None:
        """Makes void what was written of `step` and later ones."""
        self._write(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, values: Iterator[Summary.Value]) -> None:
        """One event."""
        self._write(Event(step=step, summary=Summary(value=values)))

    def flush(self) -> None:
        """Readers see it, and it outlives this process."""
        self._file.flush()

    def close(self) -> None:
        """Nothing is written any more."""
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())


def text_value(tag: str, text: str) -> Summary.Value:
    """Markdown."""
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=TensorShapeProto())
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary.Value(tag=tag, metadata=metadata, tensor=tensor)


class TensorBoardFiles(Tracker):
    """`metrics` and `samples` by step, `evaluations` by version, `events` by number, each a run of TensorBoard's."""

    def __init__(self, run: TrackedRun) -> None:
        self._metrics = EventFile(run.folder / "metrics")
        self._samples = EventFile(run.folder / "samples")
        self._events = EventFile(run.folder / "events")
        self._folder_of_evaluations = run.folder / "evaluations"
        self._evaluations: EventFile | None = None
        """Once there is one: a job that evaluates nothing has no such run."""
        if run.given_lines:  # a process that died may have given more than its cursor says
            self.forget(run.next_step)
            if self._folder_of_evaluations.exists():
                self.forget_evaluations(run.next_version)
        else:
            config = json.dumps(run.config, indent=1)
            self._events.write(0, iter([text_value("config", _quoted(config))]))

    def forget(self, step: int) -> None:
        """See the base."""
        self._metrics.begin_at(step)
        self._samples.begin_at(step)

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        """See the base."""
        values = (Summary.Value(tag=name, simple_value=value) for name, value in figures.items())
        self._metrics.write(step, values)

    def forget_evaluations(self, version: int) -> None:
        """See the base."""
        self._file_of_evaluations().begin_at(version)

    def evaluation(self, version: int, figures: Mapping[str, float]) -> None:
        """See the base."""
        values = (Summary.Value(tag=name, simple_value=value) for name, value in figures.items())
        self._file_of_evaluations().write(version, values)

    def samples(self, step: int, samples: Sequence[Line]) -> None:
        """See the base."""
        values = (text_value(f"sample/{place}", _of_sample(line)) for place, line in enumerate(samples))
        self._samples.write(step, values)

    def events(self, first: int, events: Sequence[Line]) -> None:
        """See the base."""
        for number, line in enumerate(events, first):
            text = f"{line['time']} **{line['reason']}** {line['message']}"
            self._events.write(number, iter([text_value("events", text)]))

    def flush(self) -> None:
        """See the base."""
        for file in self._files():
            file.flush()

    def close(self) -> None:
        """See the base."""
        for file in self._files():
            file.close()

    def _files(self) -> list[EventFile]:
        return [self._metrics, self._samples, self._events, *([] if self._evaluations is None else [self._evaluations])]

    def _file_of_evaluations(self) -> EventFile:
        if self._evaluations is None:
            self._evaluations = EventFile(self._folder_of_evaluations)
        return self._evaluations


def _of_sample(line: Line) -> str:
    head = (
        f"reward {line['reward']:.4f}, {line['responseTokens']} tokens, {line['finishReason']}, epoch {line['epoch']}"
    )
    return f"{head}\n\n{_quoted(line['prompt'])}\n\n{_quoted(line['response'])}"


def _quoted(text: str) -> str:
    """As it is, whatever marks of Markdown are in it."""
    return "\n".join(f"    {line}" for line in text.splitlines())
