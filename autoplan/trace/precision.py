"""The dtype in which each precision of a plan computes: what models are traced and run in."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from autoplan.job import Precision

COMPUTE_DTYPES: Mapping[Precision, torch.dtype | None] = {
    "fp32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
"""None where the model keeps its own dtypes; else there are master weights in fp32."""
