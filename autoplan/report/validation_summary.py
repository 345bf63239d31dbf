"""Predictions beside published measurements as plain data, for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from autoplan.validation.predict import Prediction
from autoplan.validation.scores import by_set, summarise


def summary(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """``rows`` with every prediction, ``summary`` by set and over all; None where there is none.

    Seconds, bytes, and errors as signed fractions (predicted over reported, minus 1).
    """
    return {
        "rows": [_row(each) for each in predictions],
        "summary": {
            "all": asdict(summarise(predictions)),
            "sets": {
                name: asdict(summarise(members)) for name, members in by_set(predictions).items()
            },
        },
    }


def _row(prediction: Prediction) -> dict[str, Any]:
    row = prediction.row
    return {
        "id": row.id,
        "set": row.set,
        "quality": row.quality,
        "predicted_s": prediction.predicted_s,
        "reported_s": row.step_time_s,
        "error": prediction.error,
        "predicted_mem_bytes": prediction.predicted_bytes,
        "reported_mem_bytes": prediction.reported_bytes,
        "mem_error": prediction.mem_error,
        "out_of_memory": prediction.out_of_memory,
        "reported_out_of_memory": prediction.reported_out_of_memory,
        "assumed": list(prediction.assumed),
        "skipped": prediction.skipped,
    }
