"""The end of evaluations: what all samples give, reported once, after which the next version may come.

The coordinator calls it in its thread, as a background duty. The queue has the samples; ranks begin an evaluation.
"""

from __future__ import annotations

from rljob_api.wire.observation import EvaluationReport, EventKind
from rljob_workers.dcs.coordinator.context import CoordinatorContext
from rljob_workers.dcs.coordinator.epochs import Epochs
from rljob_workers.evaluation import SampleResult, metrics_of, sentence_of


class Evaluations:
    """Those of a job."""

    def __init__(self, context: CoordinatorContext, epochs: Epochs) -> None:
        self._context = context
        self._epochs = epochs

    def check(self) -> None:
        """Ends the one whose samples are all scored. Reported once, also by a coordinator that died in between."""
        spec = self._context.job.spec.evaluation
        if spec is None:
            return
        state = self._context.admin.evaluation()
        if state.version < 0 or state.is_over or state.num_results < state.num_samples:
            return
        results = [SampleResult.parse(text) for text in self._context.admin.evaluation_results()]
        metrics = metrics_of(results, spec.sets)
        message = f"Version {state.version} was evaluated: {sentence_of(metrics, spec.sets)}."
        event = self._context.event(EventKind.EVALUATED, self._epochs.current.restore.epoch, message)
        report = EvaluationReport(version=state.version, samples=len(results), metrics=metrics)
        self._context.emit_once(
            "evaluation", f"{state.lineage}/{state.version}", event.model_copy(update={"evaluation": report})
        )
        self._context.admin.end_evaluation(state.version)
