"""Losses, aggregations, corrections and advantages of a user, by import path: each result is checked.

For the tables of names (`trainers.objectives`, `estimators`). What a function raises, or returns in another form than
its signature has, ends the job with one sentence at that call: the next would give the same. Whether numbers are finite
is looked at in the first call alone where that would make the host wait for a device; later steps that are not finite
are skipped, and counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from rljob_workers.algorithms.losses import TokenLosses
from rljob_workers.algorithms.objective import MaskedRows, TokenWeights
from rljob_workers.user_functions import FinalCalls, Signature, load_called

if TYPE_CHECKING:
    from rljob_api.spec.algorithm import AlgorithmSpec

MAX_METRICS = 64
"""Different names that one loss may have: each is a figure of every step."""


_METRIC_NAME = re.compile(r"(?=.{1,64}\Z)[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")


_OF_THE_DEVICE = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
"""Errors of a call that are no fault of the function: a restart may cure it. torch before 2.8 lacks the second."""


class UserFunction:
    """One of them, with the field that names it."""

    def __init__(self, field: str, name: str, function: Any) -> None:  # noqa: ANN401 - a user's
        """`field` of `algorithm`; `name`: the import path."""
        self._where = f"algorithm.{field}: {name}"
        self._calls = FinalCalls(self._where, function)

    @classmethod
    def load(cls, algorithm: AlgorithmSpec, field: str, name: str, wanted: Signature) -> Any:  # noqa: ANN401 - its kind
        """The job's. Raises ValueError, with a sentence, where it cannot be loaded or does not take these arguments."""
        path, is_called = algorithm.path, "it is called, and not awaited"
        return cls(field, name, load_called(f"algorithm.{field}", name, "algorithm.path", path, wanted, is_called))

    def _answer(self, on: str, *arguments: object) -> Any:  # noqa: ANN401 - what a user returns
        try:
            return self._calls.answer(on, *arguments)
        except ValueError as error:
            if isinstance(error.__cause__, _OF_THE_DEVICE):
                raise error.__cause__ from None
            raise

    def _refuse(self, found: str, cure: str) -> ValueError:
        return ValueError(f"{self._where} returned {found}. {cure}")


class OwnLoss(UserFunction):
    """A policy loss."""

    def __init__(self, field: str, name: str, function: Any) -> None:  # noqa: ANN401 - a user's
        super().__init__(field, name, function)
        self._is_judged = False
        """Whether a call has shown that it gives finite numbers."""
        self._metrics: frozenset[str] = frozenset()

    def __call__(
        self, new_log_probs: torch.Tensor, log_probs: torch.Tensor, advantages: torch.Tensor, rows: MaskedRows
    ) -> TokenLosses:
        """As a loss of ours: only `loss` carries a gradient."""
        given = (new_log_probs, log_probs, advantages)
        found = self._answer(_tokens(new_log_probs), *given, rows)
        if not isinstance(found, TokenLosses):
            raise self._refuse(
                f"{described(found)} for {_tokens(new_log_probs)}",
                "Return TokenLosses(loss, ratio, is_clipped) of rljob_workers.algorithms.losses, each a tensor of one"
                " number for each token.",
            )
        of_tokens = {"loss": found.loss, "ratio": found.ratio, "is_clipped": found.is_clipped}
        for name, values in (of_tokens | self._named(found.metrics)).items():
            self._check_tokens(name, values, new_log_probs)
        self._check_gradient(found.loss, new_log_probs)
        self._judge(found.loss, given, rows)
        dtype = found.loss.dtype
        return replace(
            found,
            ratio=found.ratio.detach().to(dtype),
            is_clipped=found.is_clipped.detach().to(dtype),
            metrics={name: values.detach().to(dtype) for name, values in found.metrics.items()},
        )

    def _named(self, metrics: object) -> dict[str, Any]:
        if not isinstance(metrics, Mapping):
            raise self._refuse(
                f"TokenLosses whose metrics are {described(metrics)}", "Give a mapping of names to tensors."
            )
        for name in metrics:
            if not isinstance(name, str) or not _METRIC_NAME.fullmatch(name):
                raise self._refuse(
                    f"TokenLosses with the metric {name!r:.80}",
                    "Give it a name of at most 64 letters, digits, underscores, full stops, hyphens and slashes between"
                    " them.",
                )
        self._metrics |= metrics.keys()
        if len(self._metrics) > MAX_METRICS:
            raise self._refuse(
                f"more than {MAX_METRICS} different metrics",
                "Each is a figure of every step: name what is measured, not what it is measured of.",
            )
        return {f"metrics[{name!r}]": values for name, values in metrics.items()}

    def _check_tokens(self, name: str, found: Any, like: torch.Tensor) -> None:  # noqa: ANN401 - a user's
        floating = "floating-point " if name == "loss" else ""
        if not is_real(found, like) or (floating and not found.is_floating_point()):
            raise self._refuse(
                f"TokenLosses whose {name} is {described(found)}",
                f"Give a tensor of one {floating}number for each of {_tokens(like)}, on {like.device}.",
            )

    def _check_gradient(self, loss: torch.Tensor, new_log_probs: torch.Tensor) -> None:
        if new_log_probs.requires_grad and new_log_probs.numel() and not loss.requires_grad:
            raise self._refuse(
                "TokenLosses whose loss has no gradient",
                "Make it of new_log_probs, without detach() and outside torch.no_grad().",
            )

    def _judge(self, loss: torch.Tensor, given: tuple[torch.Tensor, ...], rows: MaskedRows) -> None:
        """In the first call that has a token."""
        if self._is_judged or not rows.masks.numel():
            return
        counted = (rows.masks > 0) & torch.stack([one.detach().isfinite() for one in given]).all(0)
        wrong, count = int((counted & ~loss.detach().isfinite()).sum()), int(counted.sum())
        if wrong:
            raise self._refuse(
                f"TokenLosses whose loss is not finite at {wrong} of {count} tokens that count, whose log-probs and"
                " advantages are finite",
                "Look for a division by 0, a logarithm of 0, or exp of a large number (ratio_of clamps it).",
            )
        self._is_judged = count > 0


class OwnAggregation(UserFunction):
    """The weight of each token, made on the host."""

    def __call__(self, rows: MaskedRows) -> TokenWeights:
        """As an aggregation of ours."""
        found = self._answer(_tokens(rows.masks), rows)
        if not isinstance(found, TokenWeights):
            raise self._refuse(
                f"{described(found)} for {_tokens(rows.masks)}",
                "Return TokenWeights(weights, normaliser) of rljob_workers.algorithms.objective: a tensor of one weight"
                " for each token, and a tensor [] whose sum over all rows of a step the loss is divided by.",
            )
        if not is_real(found.weights, rows.masks) or not _is_amount(found.weights):
            raise self._refuse(
                f"TokenWeights whose weights are {described(found.weights)}",
                f"Give a tensor of one finite weight of 0 or more for each of {_tokens(rows.masks)}, on"
                f" {rows.masks.device}.",
            )
        if not is_real(found.normaliser, torch.zeros(())) or not _is_amount(found.normaliser):
            raise self._refuse(
                f"TokenWeights whose normaliser is {described(found.normaliser)}",
                "Give a tensor [] of a finite number of 0 or more, as rows.masks.sum() is.",
            )
        if bool((found.weights[rows.masks == 0] > 0).any()):
            raise self._refuse(
                "TokenWeights with a weight above 0 where rows.masks is 0: nothing may be learnt from these tokens",
                "Multiply the weights by rows.masks.",
            )
        return TokenWeights(found.weights.detach().float(), found.normaliser.detach().float())


class OwnCorrection(UserFunction):
    """Importance weights."""

    def __init__(self, field: str, name: str, function: Any) -> None:  # noqa: ANN401 - a user's
        super().__init__(field, name, function)
        self._is_judged = False
        """Whether a call has shown that it gives finite numbers."""

    def __call__(self, log_probs: torch.Tensor, rollout_log_probs: torch.Tensor, rows: MaskedRows) -> torch.Tensor:
        """As a correction of ours."""
        found = self._answer(_tokens(log_probs), log_probs, rollout_log_probs, rows)
        if not is_real(found, log_probs):
            raise self._refuse(
                f"{described(found)} for {_tokens(log_probs)}",
                f"Return a tensor of one weight for each token, on {log_probs.device}.",
            )
        weights: torch.Tensor = found.detach().to(log_probs.dtype)
        if not self._is_judged and rows.masks.numel():
            counted = (rows.masks > 0) & log_probs.isfinite() & rollout_log_probs.isfinite()
            wrong, count = int((counted & ~weights.isfinite()).sum()), int(counted.sum())
            if wrong:
                raise self._refuse(
                    f"weights that are not finite at {wrong} of {count} tokens that count, whose log-probs are finite",
                    "Clamp the log-ratio before exp, as ratio_of of rljob_workers.algorithms.objective does.",
                )
            self._is_judged = count > 0
        return weights


class OwnAdvantage(UserFunction):
    """Advantages of groups, made on the host."""

    def __call__(self, rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        """As a row estimator of ours; the function gets copies, since rewards are reported as they are."""
        found = self._answer(f"rewards {list(rewards.shape)}", rewards.clone(), valid.clone())
        cure = "Return a tensor of one finite number for each reward."
        if not is_real(found, rewards):
            raise self._refuse(f"{described(found)} for rewards {list(rewards.shape)}", cure)
        wrong = int((valid & ~found.isfinite()).sum())
        if wrong:
            raise self._refuse(f"advantages that are not finite for {wrong} of {int(valid.sum())} valid samples", cure)
        return torch.where(valid, found.detach(), 0.0)


def is_real(found: object, like: torch.Tensor) -> bool:
    """Whether it is a tensor of real numbers of the shape of `like`, and on its device."""
    return (
        isinstance(found, torch.Tensor)
        and found.shape == like.shape
        and found.device == like.device
        and not found.is_complex()
    )


def described(found: object) -> str:
    """The returned value, for a sentence."""
    if isinstance(found, torch.Tensor):
        dtype = str(found.dtype).removeprefix("torch.")
        is_shown = found.numel() == 1 and not found.is_meta and not found.is_complex()
        value = f" {found.item():g}" if is_shown else ""
        return f"a tensor{value} {list(found.shape)} of {dtype} on {found.device}"
    if found is None:
        return "None"
    kind = type(found)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    shape = getattr(found, "shape", None)
    return f"{name} {list(shape)}" if isinstance(shape, tuple) else f"{name} {found!r:.80}"


def _is_amount(values: torch.Tensor) -> bool:
    return bool((values.isfinite() & (values >= 0)).all())


def _tokens(values: torch.Tensor) -> str:
    return f"{values.numel()} tokens"
