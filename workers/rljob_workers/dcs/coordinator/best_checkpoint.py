"""Which recorded checkpoint has the best value of a metric, and whose values are kept: the policy of `keepBest`.

Pure. `measures` keeps what it goes by; `rljob_workers.dcs.checkpoints.retention` spares the folder.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rljob_api.spec.measured import BestMode
from rljob_api.wire.checkpoints import BestCheckpoint, Measured

if TYPE_CHECKING:
    from rljob_api.spec.measured import KeepBestSpec
    from rljob_workers.dcs.checkpoints.retention import Retention


def best_of(spec: KeepBestSpec, measured: Measured) -> BestCheckpoint | None:
    """The best of the versions that are recorded and have a value; of equal ones the first. None: there is none."""
    values = measured.candidates.values
    known = sorted(one for one in measured.folders if one in values and math.isfinite(values[one]))
    if measured.candidates.metric != spec.metric or not known:
        return None
    best = (max if spec.mode is BestMode.MAX else min)(known, key=lambda one: values[one])
    return BestCheckpoint(
        version=best,
        folder=measured.folders[best],
        metric=spec.metric,
        mode=spec.mode.value,
        value=values[best],
    )


def after_record(spec: KeepBestSpec, measured: Measured, version: int, folder: str, retention: Retention) -> Measured:
    """With `version` recorded, and without those whose folders go or that were passed over: they compete no more.

    Kept are those whose folders `retention` keeps, the best one, and values of later versions. What stays for ever is
    the best again where a restart goes back to before a better one.
    """
    folders = {one: name for one, name in measured.folders.items() if one < version} | {version: folder}
    best = best_of(spec, measured.model_copy(update={"folders": folders}))
    stay = {*sorted(folders)[-retention.keep :], *(() if best is None else (best.version,))}
    stay |= {one for one in folders if retention.stays_for_ever(one)}
    values = {one: value for one, value in measured.candidates.values.items() if one in stay or one > version}
    return measured.model_copy(
        update={
            "folders": {one: name for one, name in folders.items() if one in stay},
            "candidates": measured.candidates.model_copy(update={"values": values}),
        }
    )
